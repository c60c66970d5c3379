"""DETR3D in plain torch: what its backbone is exported from, and what its engine is compared with."""

from trtkit.sources.torch.models.detr3d.folder import from_folder, make_backbone
from trtkit.sources.torch.models.detr3d.model import Backbone, Detr3d, Detr3dConfig, decode

__all__ = ["Backbone", "Detr3d", "Detr3dConfig", "decode", "from_folder", "make_backbone"]
