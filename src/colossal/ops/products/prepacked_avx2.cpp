#define COLOSSAL_PREPACKED prepacked_avx2
#define COLOSSAL_PREPACKED_NAME "avx2"
#include "colossal/ops/products/prepacked_kernel.h"
