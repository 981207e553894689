#include "colossal/base/number.h"

#include <charconv>
#include <cmath>

namespace colossal {

std::string print_number(double number) {
  if (std::isnan(number)) return "nan";  // whatever its sign
  char text[64];
  return std::string(text, std::to_chars(text, text + sizeof(text), number).ptr);
}

double shortest_double(float number) {
  char text[64];
  const char* end = std::to_chars(text, text + sizeof(text), number).ptr;
  double found = number;
  std::from_chars(text, end, found);
  return found;
}

}  // namespace colossal
