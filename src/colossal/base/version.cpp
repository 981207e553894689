#include "colossal/base/version.h"

#include "colossal_revision.h"

namespace colossal {

const char* version() { return COLOSSAL_VERSION; }

const char* revision() { return COLOSSAL_REVISION; }

}  // namespace colossal
