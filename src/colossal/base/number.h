#pragma once
#include <string>

namespace colossal {

/// The shortest text that reads back as the same double: "0.1", "1048576", "1e+300", "inf", "nan".
std::string print_number(double number);

}  // namespace colossal
