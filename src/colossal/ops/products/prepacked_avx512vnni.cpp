#define COLOSSAL_PREPACKED prepacked_avx512vnni
#define COLOSSAL_PREPACKED_NAME "avx512vnni"
#include "colossal/ops/products/prepacked_kernel.h"
