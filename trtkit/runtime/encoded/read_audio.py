"""Audio files as samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import RequestError

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.arrays import Array


def read_audio(path: Path, sampling_rate: int, most_seconds: float) -> Array:
    """Return a file's first audio stream as mono samples [N] in fp32 between -1 and 1.

    Raises RequestError for a file that cannot be read, has no audio, or is longer than `most_seconds`.
    """
    import av

    try:
        with av.open(str(path)) as file:
            if not file.streams.audio:
                raise RequestError("the file has no audio", str(path), "give a recording")
            resampler = av.AudioResampler("flt", "mono", sampling_rate)
            parts, count, most = [], 0, int(most_seconds * sampling_rate)
            for frame in [*file.decode(audio=0), None]:
                for part in resampler.resample(frame):
                    parts.append(part.to_ndarray().reshape(-1))
                    count += len(parts[-1])
                if count > most:
                    what = f"the audio is longer than {most_seconds:g} s, which the model hears at once"
                    raise RequestError(what, str(path), "cut it into shorter pieces")
    except (av.FFmpegError, OSError) as error:
        raise RequestError(
            f"the audio cannot be read: {error}", str(path), "give a file such as .wav or .mp3"
        ) from None
    samples: Array = np.concatenate([*parts, np.zeros(0, np.float32)]).astype(np.float32)
    return samples
