#include "colossal/text/jinja/json_value.h"

#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/text/jinja/print.h"

namespace colossal::text::jinja {
namespace {

using nlohmann::ordered_json;

constexpr int kDeepestJson = 150;  // less than kDeepestValue, so that templates can put the value into further lists

}  // namespace

Value from_json(Budget& budget, const ordered_json& json, int depth) {
  if (depth > kDeepestJson) fail(Cause::Limit, "JSON must be nested at most ", kDeepestJson, " deep");
  budget.take_bytes(sizeof(Value));
  switch (json.type()) {
    case ordered_json::value_t::boolean:
      return Value::boolean(json.get<bool>());
    case ordered_json::value_t::number_integer:
      return Value::integer(json.get<int64_t>());
    case ordered_json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
        fail(Cause::Unsupported, "integers must fit 64 bits: got ", json.get<uint64_t>());
      return Value::integer(json.get<int64_t>());
    case ordered_json::value_t::number_float:
      return Value::real(json.get<double>());
    case ordered_json::value_t::string:
      return make_text(budget, json.get<std::string>());
    case ordered_json::value_t::array: {
      std::vector<Value> values;
      for (const auto& item : json) values.push_back(from_json(budget, item, depth + 1));
      return make_items(budget, std::move(values));
    }
    case ordered_json::value_t::object: {
      Dict dict;
      for (const auto& [key, value] : json.items())
        dict.set(make_text(budget, key), from_json(budget, value, depth + 1));
      return make_dict(budget, std::move(dict));
    }
    default:
      return Value::none();
  }
}

ordered_json json_of(Budget& budget, const Value& value) {
  const std::string text = to_json(budget, value, {});
  try {
    return parse_ordered_json(text, "a value", "template");
  } catch (const Error& error) {  // a number that is not finite, deep lists
    fail(Cause::Value, error.message());
  }
}

}  // namespace colossal::text::jinja
