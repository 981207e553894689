// nlohmann's JSON. Its classes are compiled once, in json.cpp, because every unit that uses them would compile them
// again: a fifth of the time of such a unit. Include this header instead of <nlohmann/json.hpp>.
#pragma once
#include <nlohmann/json.hpp>

extern template class nlohmann::basic_json<>;
extern template class nlohmann::basic_json<nlohmann::ordered_map>;
extern template class nlohmann::detail::serializer<nlohmann::json>;
extern template class nlohmann::detail::serializer<nlohmann::ordered_json>;
