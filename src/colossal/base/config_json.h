// A config struct as JSON, for manifests. Apart from base/config.h, whose readers need not parse nlohmann's header.
#pragma once
#include <functional>
#include <nlohmann/json.hpp>

#include "colossal/base/fields.h"

namespace colossal {

nlohmann::ordered_json fields_to_json(const std::function<void(Fields&)>& visit);

/// The whole struct as nested objects in the order of its fields: byte sizes in bytes; infinities and NaN, which JSON
/// lacks, as the texts "inf", "-inf", "nan".
template <class Config>
nlohmann::ordered_json to_json_object(Config config) {
  return fields_to_json([&config](Fields& f) { config.fields(f); });
}

}  // namespace colossal
