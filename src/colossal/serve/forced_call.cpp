#include <utility>

#include "colossal/base/error.h"
#include "colossal/serve/tool_calls.h"

namespace colossal::serve {
namespace {

using nlohmann::ordered_json;

constexpr const char* kWhiteSpaceKey = "x-white-space";

ordered_json schema_of_call(const ordered_json& function, size_t number) {
  ordered_json parameters = ordered_json::object();
  const auto given = function.find("parameters");
  if (given != function.end() && given->is_object()) parameters = *given;
  if (given == function.end() || given->is_null())
    parameters = {{"type", "object"}, {"properties", ordered_json::object()}, {"additionalProperties", false}};
  const auto has = [&](const char* keyword) { return parameters.contains(keyword); };
  if (!has("type") && !has("$ref") && !has("anyOf") && !has("oneOf") && !has("allOf")) parameters["type"] = "object";
  // References such as # and #/$defs/name start at the nearest schema with an $id, which may have no $ref beside it.
  if (!has("$id") && !(has("$ref") && has("allOf")) && parameters.dump().find("\"$ref\"") != std::string::npos) {
    if (has("$ref")) parameters["allOf"] = ordered_json::array({{{"$ref", parameters["$ref"]}}});
    parameters.erase("$ref");
    parameters["$id"] = concat("tool-", number);
  }
  return {{"type", "object"},
          {"properties", {{"name", {{"const", function["name"]}}}, {"arguments", std::move(parameters)}}},
          {"required", {"name", "arguments"}},
          {"additionalProperties", false}};
}

}  // namespace

std::string forced_call_schema(const ordered_json& tools, const ToolChoice& choice) {
  ordered_json calls = ordered_json::array(), white_space;
  for (const ordered_json& tool : tools) {
    const ordered_json& function = tool.at("function");
    if (choice.kind == ToolChoice::kNamed && function.at("name") != choice.name) continue;
    calls.push_back(schema_of_call(function, calls.size()));
    const ordered_json& parameters = calls.back()["properties"]["arguments"];
    if (parameters.contains(kWhiteSpaceKey)) white_space = parameters[kWhiteSpaceKey];
  }
  ordered_json schema = calls.size() == 1 ? std::move(calls[0]) : ordered_json{{"anyOf", std::move(calls)}};
  if (!white_space.is_null()) schema[kWhiteSpaceKey] = std::move(white_space);  // the key counts for the whole schema
  return schema.dump();
}

}  // namespace colossal::serve
