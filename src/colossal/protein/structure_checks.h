// What both formats of structures need of one that is written.
#pragma once
#include <string>

#include "colossal/base/number.h"
#include "colossal/protein/structure.h"

namespace colossal::protein {

/// Checks ids and values. Errors (`component`): see mmcif_text().
void require_writable(const Structure& structure, const char* component);

/// Returns a number with `decimals` digits, without the sign of a zero, so that equal values have equal text.
inline std::string written_number(double number, int decimals) {
  std::string text = fixed_text(number, decimals);
  if (text[0] == '-' && text.find_first_not_of("-0.") == std::string::npos) text.erase(0, 1);
  return text;
}

}  // namespace colossal::protein
