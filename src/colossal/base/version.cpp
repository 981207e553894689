#include "colossal/base/version.h"

namespace colossal {

const char* version() { return COLOSSAL_VERSION; }

}  // namespace colossal
