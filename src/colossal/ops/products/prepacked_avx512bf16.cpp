#define COLOSSAL_PREPACKED prepacked_avx512bf16
#define COLOSSAL_PREPACKED_NAME "avx512bf16"
#include "colossal/ops/products/prepacked_kernel.h"
