#include "colossal/text/jinja/json_value.h"

namespace colossal::text::jinja {
namespace {
constexpr int kDeepestJson = 150;  // less than kDeepestValue, so that templates can put the value into further lists
}

Value from_json(Budget& budget, const nlohmann::ordered_json& json, int depth) {
  if (depth > kDeepestJson) fail(Cause::Limit, "JSON must be nested at most ", kDeepestJson, " deep");
  budget.take_bytes(sizeof(Value));
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::boolean:
      return Value::boolean(json.get<bool>());
    case nlohmann::ordered_json::value_t::number_integer:
      return Value::integer(json.get<int64_t>());
    case nlohmann::ordered_json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
        fail(Cause::Unsupported, "integers must fit 64 bits: got ", json.get<uint64_t>());
      return Value::integer(json.get<int64_t>());
    case nlohmann::ordered_json::value_t::number_float:
      return Value::real(json.get<double>());
    case nlohmann::ordered_json::value_t::string:
      return make_text(budget, json.get<std::string>());
    case nlohmann::ordered_json::value_t::array: {
      std::vector<Value> values;
      for (const auto& item : json) values.push_back(from_json(budget, item, depth + 1));
      return make_items(budget, std::move(values));
    }
    case nlohmann::ordered_json::value_t::object: {
      Dict dict;
      for (const auto& [key, value] : json.items())
        dict.set(make_text(budget, key), from_json(budget, value, depth + 1));
      return make_dict(budget, std::move(dict));
    }
    default:
      return Value::none();
  }
}

}  // namespace colossal::text::jinja
