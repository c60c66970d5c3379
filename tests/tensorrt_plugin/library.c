/* Stands in for TensorRT's libraries, so that its Python bindings load: everything that they would make is NULL. */
#include <stddef.h>

void *createInferBuilder_INTERNAL(void) { return NULL; }
void *createInferRefitter_INTERNAL(void) { return NULL; }
void *createInferRuntime_INTERNAL(void) { return NULL; }
void *createNvOnnxParser_INTERNAL(void) { return NULL; }
void *createNvOnnxParserRefitter_INTERNAL(void) { return NULL; }
void *getBuilderPluginRegistry(void) { return NULL; }
void *getPluginRegistry(void) { return NULL; }
int getNvOnnxParserVersion(void) { return 0; }
int initLibNvInferPlugins(void) { return 0; }
