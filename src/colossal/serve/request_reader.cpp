#include "colossal/serve/request_reader.h"

#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "colossal/base/base64.h"
#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/serve/body_fields.h"
#include "colossal/serve/generation_fields.h"
#include "colossal/serve/refused_fields.h"
#include "colossal/serve/tool_calls.h"
#include "colossal/text/unicode.h"

namespace colossal::serve {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kMostTokens = std::numeric_limits<int64_t>::max();
constexpr int64_t kMostLogprobs = 20;
constexpr double kMostGuidance = 1000;

ordered_json parsed_body(std::string_view body, const ReaderLimits& limits) {
  if (!text::is_utf8(body)) throw http::RequestError(400, "the body must be UTF-8");
  try {
    return parse_ordered_json(body, "the body", "serve", {.depth = limits.depth, .members = limits.members});
  } catch (const Error& error) {
    throw http::RequestError(400, error.message());
  }
}

std::vector<int64_t> token_list(const ordered_json& list, const std::string& param, int64_t vocabulary) {
  if (list.empty()) refuse(param, "a list of at least one token id", list);
  std::vector<int64_t> ids;
  ids.reserve(list.size());
  for (const ordered_json& id : list) ids.push_back(integer_of(id, param, 0, vocabulary - 1));
  return ids;
}

/// Reads a text, a list of texts, a list of token ids or a list of such lists.
std::vector<Prompt> read_prompts_of(const BodyFields& fields, const char* name, const ReaderOptions& reader) {
  const std::string rule = concat("a text, a list of texts, a list of token ids or a list of such lists, with 1 to ",
                                  reader.limits.embedding_inputs, " texts");
  const ordered_json* value = fields.find(name);
  if (!value) refuse(name, rule, nullptr);
  if (value->is_string()) return {value->get<std::string>()};
  if (!value->is_array() || value->empty()) refuse(name, rule, *value);
  if (value->front().is_number()) return {token_list(*value, name, reader.vocabulary)};
  if (static_cast<int64_t>(value->size()) > reader.limits.embedding_inputs) refuse(name, rule, value->size());
  std::vector<Prompt> prompts;
  for (const ordered_json& one : *value) {
    if (one.type() != value->front().type() || !(one.is_string() || one.is_array())) refuse(name, rule, one);
    if (one.is_string())
      prompts.emplace_back(one.get<std::string>());
    else
      prompts.emplace_back(token_list(one, name, reader.vocabulary));
  }
  return prompts;
}

ToolChoice read_tool_choice(const BodyFields& fields, const ChatRequest& request) {
  const ordered_json* value = fields.find("tool_choice");
  ToolChoice choice{request.tools.is_null() ? ToolChoice::kNone : ToolChoice::kAuto};
  if (!value) return choice;
  const char* rule = R"("none", "auto", "required" or {"type": "function", "function": {"name": NAME}})";
  if (value->is_string()) {
    if (*value != "none" && *value != "auto" && *value != "required") refuse("tool_choice", rule, *value);
    if (*value == "none") choice.kind = ToolChoice::kNone;
    if (*value == "required") choice.kind = ToolChoice::kRequired;
  } else {
    if (!value->is_object()) refuse("tool_choice", rule, *value);
    const ordered_json* function = BodyFields(*value, "tool_choice").object("function");
    if (!function) refuse("tool_choice", rule, *value);
    choice = {ToolChoice::kNamed, BodyFields(*function, "tool_choice.function").required_text("name")};
  }
  if (choice.is_forced() && request.tools.is_null())
    throw http::RequestError(400, "tool_choice needs tools: got none", "tool_choice");
  if (choice.kind != ToolChoice::kNamed) return choice;
  ordered_json names = ordered_json::array();
  for (const ordered_json& tool : request.tools) {
    if (tool["function"]["name"] == choice.name) return choice;
    names.push_back(tool["function"]["name"]);
  }
  refuse("tool_choice.function.name", "the name of one of the tools " + printable(names.dump()), choice.name);
}

/// Refuses a response_format beside functions: an answer in that format cannot be a call, and a forced call has a
/// format of its own.
void refuse_format_of_calls(const BodyFields& fields, const ChatRequest& request) {
  if (request.options.json_schema.empty() || request.function_names().empty()) return;
  if (!fields.find("response_format") && request.tool_choice.is_forced()) return;  // replaces the server's default
  throw http::RequestError(400,
                           concat(R"(response_format must be {"type": "text"} beside tools: got JSON)",
                                  fields.find("response_format") ? "" : ", which this server's --json-schema demands",
                                  R"(, which is no call; leave one of them out, or send "tool_choice": "none")"),
                           "response_format");
}

void read_chat_logprobs(const BodyFields& fields, infer::GenerationOptions& options) {
  const bool reports = fields.flag("logprobs").value_or(false);
  const auto best = fields.integer("top_logprobs", 0, kMostLogprobs);
  if (best.value_or(0) > 0 && !reports)
    throw http::RequestError(400, concat("top_logprobs needs \"logprobs\": true: got top_logprobs ", *best),
                             "top_logprobs");
  if (reports) options.logprobs = best.value_or(0);
}

/// Returns the size of pictures, of at most that many pixels; "" = that of the model.
std::string read_picture_size(const BodyFields& fields, int64_t max_pixels) {
  const std::string size = fields.text("size").value_or("auto");
  if (size == "auto") return "";
  const ops::PictureSize pixels = as_bad_request("size", [&] { return diffusion::DrawOptions{.size = size}.pixels(); });
  if (pixels.pixels() > max_pixels) refuse("size", concat("at most ", max_pixels, " pixels"), size);
  return size;
}

/// Reads a picture: base64, or a data URL with it. Its field is its name. The field and both forms are those of the
/// server of stable-diffusion.cpp (examples/server/api.md, "Image Encoding Rules").
void read_picture(const BodyFields& fields, const char* name, std::string& option, diffusion::GivenFiles& files) {
  constexpr std::string_view kUrl = "data:", kBase64 = ";base64,";
  const std::optional<std::string> text = fields.text(name);
  if (!text || text->empty()) return;
  std::string_view encoded = *text;
  if (const size_t at = encoded.find(kBase64); encoded.starts_with(kUrl) && at != std::string_view::npos)
    encoded.remove_prefix(at + kBase64.size());
  std::optional<std::string> bytes = from_base64(encoded);
  if (!bytes || bytes->empty()) refuse(name, "the base64 of a PNG or JPEG file", text->substr(0, 16));
  option = name;
  files[name] = std::move(*bytes);
}

/// Returns the maximum number of new tokens, at least `low`. The newer name has precedence.
std::optional<int64_t> read_max_tokens(const BodyFields& fields, int64_t low) {
  const auto older = fields.integer("max_tokens", low, kMostTokens);
  const auto newer = fields.integer("max_completion_tokens", low, kMostTokens);
  return newer ? newer : older;
}

}  // namespace

std::vector<std::string> ChatRequest::function_names() const {
  std::vector<std::string> names;
  if (tools.is_null() || tool_choice.kind == ToolChoice::kNone) return names;
  for (const ordered_json& tool : tools) names.push_back(tool.at("function").at("name").get<std::string>());
  return names;
}

CompletionRequest RequestReader::completion(std::string_view body) const {
  const ordered_json json = parsed_body(body, options_.limits);
  const BodyFields fields(json);
  CompletionRequest request;
  read_generation(fields, options_, request);
  refuse_fields(fields, kCompletions);
  constexpr int64_t kCompletionTokens = 16;  // OpenAI's default
  request.options.max_tokens =
      read_max_tokens(fields, 0).value_or(options_.defaults.max_tokens.value_or(kCompletionTokens));
  request.echo = fields.flag("echo").value_or(false);
  request.options.logprobs = fields.integer("logprobs", 0, kMostLogprobs).value_or(-1);
  if (request.echo && request.options.logprobs >= 0) {
    request.options.prompt_logprobs = request.options.logprobs;
    request.options.attention_sinks = -1;  // they would drop tokens of the prompt
  }
  request.prompts = read_prompts_of(fields, "prompt", options_);
  return request;
}

ChatRequest RequestReader::chat(std::string_view body) const {
  const ordered_json json = parsed_body(body, options_.limits);
  const BodyFields fields(json);
  ChatRequest request;
  read_generation(fields, options_, request);
  refuse_fields(fields, kChats);
  request.options.max_tokens = read_max_tokens(fields, 1).value_or(options_.defaults.max_tokens.value_or(kAsManyAsFit));
  read_chat_logprobs(fields, request.options);
  read_chat_input(fields, options_, request);
  request.tool_choice = read_tool_choice(fields, request);
  request.parallel_tool_calls = fields.flag("parallel_tool_calls").value_or(true);
  refuse_format_of_calls(fields, request);
  if (request.tool_choice.is_forced()) {
    request.options.json_schema = forced_call_schema(request.tools, request.tool_choice);
    check_schema_size(request.options.json_schema, "tools");
  }
  return request;
}

EmbeddingRequest RequestReader::embedding(std::string_view body) const {
  const ordered_json json = parsed_body(body, options_.limits);
  const BodyFields fields(json);
  EmbeddingRequest request;
  request.model = read_model(fields, options_.names);
  const std::string format = fields.text("encoding_format").value_or("float");
  if (format != "float" && format != "base64") refuse("encoding_format", R"("float" or "base64")", format);
  request.base64 = format == "base64";
  refuse_fields(fields, kEmbeddings);
  request.inputs = read_prompts_of(fields, "input", options_);
  return request;
}

ImageRequest RequestReader::image(std::string_view body) const {
  const ordered_json json = parsed_body(body, options_.limits);
  const BodyFields fields(json);
  ImageRequest request;
  request.model = read_model(fields, options_.names);
  diffusion::DrawOptions& options = request.options;
  options.prompt = fields.required_text("prompt");
  options.negative = fields.text("negative_prompt").value_or("");
  options.count = fields.integer("n", 1, options_.limits.pictures).value_or(1);
  options.size = read_picture_size(fields, options_.limits.pixels);
  const std::string format = fields.text("response_format").value_or("b64_json");
  if (format != "b64_json") refuse("response_format", R"("b64_json", because the server keeps no files)", format);
  const auto seed = fields.integer("seed", -kMostTokens, kMostTokens - options_.limits.pictures);
  request.has_seed = seed.has_value();
  options.seed = seed.value_or(options.seed);
  options.steps = fields.integer("num_inference_steps", 1, kMostTokens).value_or(options.steps);
  options.guidance =
      fields.number("guidance_scale", 0, kMostGuidance, "above 0 and at most 1000; 1 = none", /*excludes_low=*/true)
          .value_or(options.guidance);
  read_picture(fields, "control_image", options.control_image, request.files);
  read_picture(fields, "ip_adapter_image", options.ip_image, request.files);
  refuse_fields(fields, kImages);
  return request;
}

TokenizeRequest RequestReader::tokenize(std::string_view body) const {
  const ordered_json json = parsed_body(body, options_.limits);
  const BodyFields fields(json);
  std::string model = read_model(fields, options_.names);
  refuse_fields(fields, kTokenization);
  const std::optional<bool> special = fields.flag("add_special_tokens");
  if (!fields.find("messages")) return {std::move(model), fields.required_text("prompt"), special.value_or(true)};
  if (fields.find("prompt"))
    throw http::RequestError(400, "prompt must be left out beside messages: got both; tokenize each alone", "prompt");
  ChatRequest request;
  read_chat_input(fields, options_, request);
  if (!request.tools.is_null()) request.tool_choice.kind = ToolChoice::kAuto;
  return {std::move(model), std::move(request), special.value_or(false)};
}

DetokenizeRequest RequestReader::detokenize(std::string_view body) const {
  const ordered_json json = parsed_body(body, options_.limits);
  const BodyFields fields(json);
  read_model(fields, options_.names);
  const ordered_json* tokens = fields.list("tokens");
  if (!tokens) refuse("tokens", "a list of token ids", nullptr);
  DetokenizeRequest request;
  for (const ordered_json& id : *tokens) request.tokens.push_back(integer_of(id, "tokens", 0, options_.vocabulary - 1));
  return request;
}

}  // namespace colossal::serve
