#include "colossal/serve/generation_fields.h"

#include <algorithm>
#include <limits>

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
  double SamplingOptions::*value;
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

}  // namespace

void refuse_model(const std::string& model, const std::string& name) {
  throw http::RequestError(404, concat("the model ", printable(model), " does not exist: this server has ", name),
                           "model", "model_not_found");
}

std::string read_model(const BodyFields& fields, const std::string& name) {
  std::string model = fields.text("model").value_or("");
  if (!name.empty() && !model.empty() && model != name) refuse_model(model, name);
  return model;
}

void check_schema_size(const std::string& schema, const std::string& param) {
  if (schema.size() > kMaxSchemaBytes)
    throw http::RequestError(
        400, concat(param, " must have a JSON Schema of at most ", kMaxSchemaBytes, " bytes: got ", schema.size()),
        param);
}

void read_generation(const BodyFields& fields, const ReaderOptions& reader, GenerationRequest& request) {
  request.model = read_model(fields, reader.name);
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

}  // namespace colossal::serve
