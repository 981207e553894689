// The numbers of a data position, which a checkpoint keeps and anybody may have edited.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>

namespace colossal::data {

/// The number that `position` has under `key`. Errors ("data"): none, or no whole number from 0 to 2^48.
int64_t position_number(const nlohmann::json& position, const char* key);

}  // namespace colossal::data
