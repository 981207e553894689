#include "colossal/diffusion/drawn_class.h"

#include <algorithm>
#include <charconv>

#include "colossal/base/error.h"
#include "colossal/base/suggest.h"

namespace colossal::diffusion {

int64_t drawn_class(const std::string& text, const std::vector<std::string>& names, int64_t count) {
  const auto found = std::find(names.begin(), names.end(), text);
  if (found != names.end()) return found - names.begin();
  int64_t number = -1;
  const char* const end = text.data() + text.size();
  const auto [at, failed] = std::from_chars(text.data(), end, number);
  const bool is_number = failed == std::errc() && at == end;
  require(is_number, "draw", "the class must be a name or a number of the model's ", count, " classes: got `", text,
          "`", did_you_mean(text, names));
  require(number >= 0 && number < count, "draw", "the class must be in [0, ", count, "): got ", number);
  return number;
}

std::string class_title(int64_t drawn, const std::vector<std::string>& names) {
  return names.empty() ? concat("class ", drawn) : names.at(static_cast<size_t>(drawn));
}

}  // namespace colossal::diffusion
