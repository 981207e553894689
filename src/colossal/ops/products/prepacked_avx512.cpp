#define COLOSSAL_PREPACKED prepacked_avx512
#define COLOSSAL_PREPACKED_NAME "avx512"
#include "colossal/ops/products/prepacked_kernel.h"
