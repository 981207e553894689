#define COLOSSAL_PREPACKED prepacked_avxvnni
#define COLOSSAL_PREPACKED_NAME "avxvnni"
#include "colossal/ops/products/prepacked_kernel.h"
