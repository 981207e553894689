// Numbers as text.
#pragma once
#include <string>

namespace colossal {

/// The shortest text that reads back as the same double: "0.1", "1048576", "1e+300", "inf", "nan".
std::string print_number(double number);

/// The double of the shortest text that reads back as the same float: 1e-5 of the float that is nearest to it. What was
/// written as a decimal and stored as a float is that decimal again.
double shortest_double(float number);

}  // namespace colossal
