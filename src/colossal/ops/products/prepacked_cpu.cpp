#define COLOSSAL_PREPACKED prepacked_portable
#define COLOSSAL_PREPACKED_NAME "portable"
#include "colossal/ops/products/prepacked_kernel.h"
