#include "colossal/data/position_number.h"

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"

namespace colossal::data {

int64_t position_number(const nlohmann::json& position, const char* key) {
  constexpr uint64_t kMaxPosition = uint64_t{1} << 48;  // bounded, so that sums of a few numbers cannot overflow
  const bool has_key = position.is_object() && position.contains(key);
  // The parser stores whole numbers from 0 as unsigned; a program may store them as signed.
  const auto value = has_key ? position[key] : nlohmann::json();
  const bool is_whole = value.is_number_integer() && (value.is_number_unsigned() || value.get<int64_t>() >= 0) &&
                        value.get<uint64_t>() <= kMaxPosition;
  require(is_whole, "data", "the checkpoint's data position is damaged: ", key,
          " must be a whole number from 0 to 2^48: got ", printable(value.dump()));
  return value.get<int64_t>();
}

}  // namespace colossal::data
