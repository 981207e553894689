// The numbers of a data position. They are checked, because a checkpoint may have been edited.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>

namespace colossal::data {

/// Returns the number of `position` under `key`. Errors ("data"): there is none, or it is no whole number from 0 to
/// 2^48.
int64_t position_number(const nlohmann::json& position, const char* key);

}  // namespace colossal::data
