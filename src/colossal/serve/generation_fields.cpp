#include "colossal/serve/generation_fields.h"

#include <algorithm>
#include <limits>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/base/number.h"
#include "colossal/serve/refused_fields.h"

namespace colossal::serve {
namespace {

using infer::SamplingOptions;
using nlohmann::ordered_json;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr int64_t kAnyInteger = std::numeric_limits<int64_t>::max();
constexpr size_t kMaxSchemaBytes = size_t{1} << 20;  // each choice has a copy

struct NumberField {
  const char* name;
  double SamplingOptions::* value;
  double low, high;
  const char* rule;
  bool excludes_low = false;
};

constexpr NumberField kNumbers[] = {
    {"temperature", &SamplingOptions::temperature, 0, kInf, "at least 0"},
    {"top_p", &SamplingOptions::top_p, 0, 1, "more than 0 and at most 1", true},
    {"min_p", &SamplingOptions::min_p, 0, 1, "from 0 to 1"},
    {"presence_penalty", &SamplingOptions::presence_penalty, -kInf, kInf, "a number"},
    {"frequency_penalty", &SamplingOptions::frequency_penalty, -kInf, kInf, "a number"},
    {"repetition_penalty", &SamplingOptions::repetition_penalty, 0, kInf, "more than 0", true},
};

void read_sampling(const BodyFields& fields, int64_t vocabulary, const ReaderLimits& limits,
                   SamplingOptions& sampling) {
  for (const NumberField& field : kNumbers)
    if (const auto value = fields.number(field.name, field.low, field.high, field.rule, field.excludes_low))
      sampling.*field.value = *value;
  const int64_t top_k = fields.integer("top_k", -1, kAnyInteger).value_or(sampling.top_k);
  sampling.top_k = std::max<int64_t>(top_k, 0);  // clients of vLLM send -1 for off
  const ordered_json* biases = fields.object("logit_bias");
  if (!biases) return;
  if (static_cast<int64_t>(biases->size()) > limits.bias_entries)
    throw http::RequestError(
        400, concat("logit_bias must have at most ", limits.bias_entries, " entries: got ", biases->size()),
        "logit_bias");
  sampling.logit_bias.clear();
  for (const auto& [name, value] : biases->items()) {
    const std::optional<int64_t> id = parse_id(name);
    if (!id || *id >= vocabulary)
      refuse("logit_bias", concat("an object with token ids below ", vocabulary, " as names"), name);
    if (!value.is_number() || value.get<double>() < -100 || value.get<double>() > 100)
      refuse("logit_bias." + name, "a number from -100 to 100", value);
    sampling.logit_bias[*id] = value.get<double>();
  }
}

std::vector<std::string> read_stops(const ordered_json& stop, const ReaderLimits& limits) {
  const std::string rule =
      concat("a text or a list of at most ", limits.stops, " texts, each of 1 to ", limits.stop_bytes, " bytes");
  const ordered_json list = stop.is_array() ? stop : ordered_json::array({stop});
  if (static_cast<int64_t>(list.size()) > limits.stops) refuse("stop", rule, stop);
  std::vector<std::string> stops;
  for (const ordered_json& one : list) {
    if (!one.is_string()) refuse("stop", rule, one);
    stops.push_back(one.get<std::string>());
    if (stops.back().empty() || static_cast<int64_t>(stops.back().size()) > limits.stop_bytes)
      refuse("stop", rule, one);
  }
  return stops;
}

/// Returns the schema of response_format; "" = any text.
std::string read_format(const ordered_json& format) {
  const BodyFields fields(format, "response_format");
  const std::string type = fields.required_text("type");
  const ordered_json* schema = fields.find("schema");  // llama.cpp: without json_schema around it
  const ordered_json* outer = fields.object("json_schema");
  if (type == "text" || type == "json_object") {
    if (outer) refuse("response_format.type", "\"json_schema\" beside json_schema", type);
    if (type == "text" && schema) refuse("response_format.type", "\"json_schema\" beside schema", type);
    return type == "text" ? "" : schema ? schema->dump() : R"({"type": "object"})";
  }
  if (type != "json_schema") refuse("response_format.type", R"("text", "json_object" or "json_schema")", type);
  if (schema && outer)
    throw http::RequestError(400, "response_format.schema must be left out beside json_schema: got both",
                             "response_format.schema");
  if (schema) return schema->dump();
  if (!outer) refuse("response_format.json_schema", "an object with \"schema\"", nullptr);
  schema = BodyFields(*outer, "response_format.json_schema").find("schema");
  if (!schema) refuse("response_format.json_schema.schema", "a JSON Schema", nullptr);
  return schema->dump();
}

/// Joins the parts of a message's content.
std::string joined_parts(const ordered_json& parts, const std::string& path) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const BodyFields fields(parts[i], concat(path, "[", i, "]"));
    const std::string type = fields.required_text("type");
    if (type != "text")
      refuse(fields.path_of("type"), "\"text\", because this server reads no images, audio or files", type);
    text += fields.required_text("text");
  }
  return text;
}

ordered_json parsed_text(const ordered_json& text, const std::string& path, const ReaderLimits& limits) {
  try {
    return parse_ordered_json(text.get_ref<const std::string&>(), path, "serve",
                              {.depth = limits.depth, .members = limits.members});
  } catch (const Error& error) {
    throw http::RequestError(400, error.message(), path);
  }
}

/// Replaces the arguments of earlier calls, which OpenAI writes as a text that holds JSON, by that JSON: templates
/// write it themselves.
void read_earlier_calls(ordered_json& calls, const std::string& path, const ReaderLimits& limits) {
  if (!calls.is_array()) refuse(path, "a list", calls);
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string place = concat(path, "[", i, "]");
    const ordered_json* function = BodyFields(calls[i], place).object("function");
    if (!function) refuse(place + ".function", "an object", nullptr);
    const BodyFields fields(*function, place + ".function");
    fields.required_text("name");
    ordered_json& arguments = calls[i]["function"]["arguments"];
    if (arguments.is_null() || arguments == "") arguments = ordered_json::object();
    if (arguments.is_string()) arguments = parsed_text(arguments, fields.path_of("arguments"), limits);
    if (!arguments.is_object()) refuse(fields.path_of("arguments"), "a JSON object", arguments);
  }
}

ordered_json read_message(ordered_json message, const std::string& path, const ReaderLimits& limits) {
  const BodyFields fields(message, path);
  const std::string role = fields.required_text("role");
  const ordered_json* content = fields.find("content");
  const bool may_lack = role == "assistant";  // calls alone
  if (content && content->is_array())
    message["content"] = joined_parts(*content, fields.path_of("content"));
  else if (content ? !content->is_string() : !may_lack)
    refuse(fields.path_of("content"), "a text or a list of {\"type\": \"text\"} parts",
           content ? *content : ordered_json());
  // Many templates join the content to other text, or look into it, and fail without one.
  if (may_lack && !content) message["content"] = "";
  if (fields.find("tool_calls")) read_earlier_calls(message["tool_calls"], fields.path_of("tool_calls"), limits);
  // Some templates take an empty list for calls.
  if (message.contains("tool_calls") && message["tool_calls"].empty()) message.erase("tool_calls");
  return message;
}

void check_tool(const ordered_json& tool, const std::string& path, std::set<std::string>& names) {
  const BodyFields fields(tool, path);
  const std::string type = fields.text("type").value_or("function");
  if (type != "function") refuse(fields.path_of("type"), "\"function\"", type);
  const ordered_json* object = fields.object("function");
  if (!object) refuse(fields.path_of("function"), "an object", nullptr);
  const BodyFields function(*object, fields.path_of("function"));
  const std::string name = function.required_text("name");
  constexpr const char* kNameCharacters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.";
  if (name.empty() || name.size() > 64 || name.find_first_not_of(kNameCharacters) != std::string::npos)
    refuse(function.path_of("name"), "1 to 64 letters, digits, \"_\", \"-\" or \".\"", name);
  if (!names.insert(name).second) refuse(function.path_of("name"), "different from the names of other tools", name);
  function.text("description");
  const ordered_json* parameters = function.object("parameters");
  if (!parameters) return;
  const BodyFields schema(*parameters, function.path_of("parameters"));
  if (const ordered_json* kind = schema.find("type"); kind && kind->is_string() && *kind != "object")
    refuse(schema.path_of("type"), "\"object\", because arguments have names", *kind);
}

/// Adds the variables that the request sets.
void read_variables(const BodyFields& fields, ChatRequest& request) {
  const auto set = [&request](const std::string& name, const ordered_json& value, const std::string& param) {
    // The template always gets these from the request itself.
    const bool is_own = name == "messages" || name == "tools" || name == "documents" || name == "add_generation_prompt";
    if (is_own && !(name == "add_generation_prompt" && value == true))
      throw http::RequestError(
          400, concat(param, " must not be a variable that the server sets: got ", name, "; leave it out"), param);
    request.variables[name] = value;
    request.variable_params[name] = param;
  };
  if (const ordered_json* variables = fields.object("chat_template_kwargs"))
    for (const auto& [name, value] : variables->items())
      if (!value.is_null()) set(name, value, "chat_template_kwargs." + name);
  if (const auto effort = fields.text("reasoning_effort")) set("reasoning_effort", *effort, "reasoning_effort");
}

}  // namespace

void check_model(const std::string& model, const std::vector<std::string>& names) {
  if (names.empty() || std::find(names.begin(), names.end(), model) != names.end()) return;
  constexpr size_t kMostShown = 8;
  std::string all = names.front();
  for (size_t i = 1; i < std::min(names.size(), kMostShown); ++i) all += ", " + names[i];
  if (names.size() > kMostShown) all += concat(" and ", names.size() - kMostShown, " others, as /v1/models lists");
  throw http::RequestError(404, concat("the model ", printable(model), " does not exist: this server has ", all),
                           "model", "model_not_found");
}

std::string read_model(const BodyFields& fields, const std::vector<std::string>& names) {
  std::string model = fields.text("model").value_or("");
  if (!model.empty()) check_model(model, names);
  return model;
}

void check_schema_size(const std::string& schema, const std::string& param) {
  if (schema.size() > kMaxSchemaBytes)
    throw http::RequestError(
        400, concat(param, " must have a JSON Schema of at most ", kMaxSchemaBytes, " bytes: got ", schema.size()),
        param);
}

void read_generation(const BodyFields& fields, const ReaderOptions& reader, GenerationRequest& request) {
  request.model = read_model(fields, reader.names);
  request.stream = fields.flag("stream").value_or(false);
  if (const ordered_json* stream = fields.object("stream_options")) {
    const BodyFields options(*stream, "stream_options");
    refuse_fields(options, kStreamOptions);
    request.include_usage = options.flag("include_usage").value_or(false);
  }
  request.n = fields.integer("n", 1, reader.limits.max_n).value_or(1);
  const int64_t best_of = fields.integer("best_of", 1, kAnyInteger).value_or(request.n);
  if (best_of != request.n)
    throw http::RequestError(400, concat("best_of must equal n: got ", best_of, " and ", request.n), "best_of");
  request.ignore_eos = fields.flag("ignore_eos").value_or(false);
  request.options = reader.defaults.options;
  request.options.logprobs = request.options.prompt_logprobs = -1;
  read_sampling(fields, reader.vocabulary, reader.limits, request.options.sampling);
  refuse_penalty_window(fields, request.options.sampling);
  const auto seed = fields.integer("seed", -kAnyInteger, kAnyInteger - reader.limits.max_n);
  request.has_seed = seed.has_value() || reader.defaults.has_seed;
  request.options.sampling.seed = seed.value_or(request.options.sampling.seed);
  if (const ordered_json* stop = fields.find("stop")) request.options.stop = read_stops(*stop, reader.limits);
  if (const ordered_json* format = fields.find("response_format")) {
    request.options.json_schema = read_format(*format);
    check_schema_size(request.options.json_schema, "response_format");
  }
}

void read_chat_input(const BodyFields& fields, const ReaderOptions& reader, ChatRequest& request) {
  const ordered_json* messages = fields.list("messages");
  if (!messages || messages->empty())
    refuse("messages", "a list of at least one message", messages ? *messages : ordered_json());
  for (size_t i = 0; i < messages->size(); ++i) {
    const std::string path = concat("messages[", i, "]");
    refuse_fields(BodyFields((*messages)[i], path), kMessages);
    request.messages.push_back(read_message((*messages)[i], path, reader.limits));
  }
  const ordered_json* tools = fields.list("tools");
  if (tools && !tools->empty()) {
    std::set<std::string> names;
    for (size_t i = 0; i < tools->size(); ++i) check_tool((*tools)[i], concat("tools[", i, "]"), names);
    request.tools = *tools;
  }
  request.variables = reader.defaults.variables;
  read_variables(fields, request);
}

}  // namespace colossal::serve
