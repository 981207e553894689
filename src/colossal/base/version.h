#pragma once

namespace colossal {

/// "0.1.0"
const char* version();

}  // namespace colossal
