#include "colossal/serve/request_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "colossal/base/error.h"

namespace colossal::serve::request_reader_test {
namespace {

using nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ReaderOptions common() { return {.defaults = request_defaults({}, {}), .vocabulary = 257}; }

CompletionRequest completion(const std::string& body, const ReaderOptions& options = common()) {
  return RequestReader(options).completion(body);
}

ChatRequest chat(const std::string& body, const ReaderOptions& options = common()) {
  return RequestReader(options).chat(body);
}

/// Returns a chat with these further members.
std::string chat_with(const std::string& members) {
  return R"({"messages": [{"role": "user", "content": "Hi"}])" + (members.empty() ? "" : ", " + members) + "}";
}

std::optional<http::RequestError> error_of(const std::function<void()>& read) {
  try {
    read();
  } catch (const http::RequestError& error) {
    return error;
  }
  return {};
}

std::optional<http::RequestError> completion_error(const std::string& body) {
  return error_of([&] { completion(body); });
}

TEST(RequestReader, AddsVariablesOfTheRequestToThoseOfTheServer) {
  ReaderOptions options = common();
  options.defaults.variables = {{"thinks", false}, {"tone", "plain"}};
  EXPECT_EQ(chat(chat_with(""), options).variables, options.defaults.variables);
  EXPECT_EQ(chat(chat_with(R"("chat_template_kwargs": {"thinks": true, "year": 1})"), options).variables,
            ordered_json({{"thinks", true}, {"tone", "plain"}, {"year", 1}}));
}

TEST(RequestReader, BoundsTheBytesOfSchemas) {
  const auto body = [](const std::string& description) {
    return R"({"prompt": "x", "response_format": {"type": "json_schema", "json_schema": {"schema": {"description": ")" +
           description + R"("}}}})";
  };
  EXPECT_FALSE(completion_error(body("short")));
  const auto error = completion_error(body(std::string(1 << 20, 'x')));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->answer().status, 400);
  EXPECT_THAT(error->answer().message, HasSubstr("at most 1048576 bytes"));
}

TEST(RequestReader, ReadsAllFieldsOfACompletion) {
  const CompletionRequest request = completion(R"({"model": "m", "prompt": "To be", "max_tokens": 5, "stream": true,
    "stream_options": {"include_usage": true}, "temperature": 0.5, "top_p": 0.9, "min_p": 0.1, "top_k": 7, "seed": 3,
    "stop": ["\n", "x"], "logit_bias": {"65": -100}, "presence_penalty": 1, "frequency_penalty": 2,
    "repetition_penalty": 1.5, "n": 2, "best_of": 2, "logprobs": 4, "echo": true, "ignore_eos": true, "user": "ann"})");
  EXPECT_EQ(request.model, "m");
  EXPECT_THAT(request.prompts, ElementsAre(Prompt("To be")));
  EXPECT_TRUE(request.stream && request.include_usage && request.echo && request.ignore_eos && request.has_seed);
  EXPECT_EQ(request.n, 2);
  EXPECT_EQ(request.options.max_tokens, 5);
  EXPECT_EQ(request.options.logprobs, 4);
  EXPECT_EQ(request.options.prompt_logprobs, 4);
  EXPECT_THAT(request.options.stop, ElementsAre("\n", "x"));
  const infer::SamplingOptions& sampling = request.options.sampling;
  EXPECT_EQ(sampling.temperature, 0.5);
  EXPECT_EQ(sampling.top_p, 0.9);
  EXPECT_EQ(sampling.min_p, 0.1);
  EXPECT_EQ(sampling.top_k, 7);
  EXPECT_EQ(sampling.seed, 3);
  EXPECT_EQ(sampling.repetition_penalty, 1.5);
  EXPECT_EQ(sampling.presence_penalty, 1);
  EXPECT_EQ(sampling.frequency_penalty, 2);
  EXPECT_EQ(sampling.logit_bias, (std::map<int64_t, double>{{65, -100}}));
}

TEST(RequestReader, TakesMinusOneAsNoTopK) {
  ReaderOptions options = common();
  options.defaults.options.sampling.top_k = 20;
  EXPECT_EQ(completion(R"({"prompt": "a"})", options).options.sampling.top_k, 20);
  EXPECT_EQ(completion(R"({"prompt": "a", "top_k": -1})", options).options.sampling.top_k, 0);
}

TEST(RequestReader, UsesOpenAisDefaults) {
  const CompletionRequest request = completion(R"({"prompt": "a", "temperature": null})");
  EXPECT_EQ(request.options.max_tokens, 16);
  EXPECT_EQ(request.options.sampling.temperature, 1);
  EXPECT_EQ(request.options.logprobs, -1);
  EXPECT_EQ(request.options.prompt_logprobs, -1);
  EXPECT_FALSE(request.has_seed);
  EXPECT_EQ(chat(chat_with("")).options.max_tokens, kAsManyAsFit);
}

TEST(RequestReader, ReadsAllShapesOfPrompts) {
  using Ids = std::vector<int64_t>;
  EXPECT_THAT(completion(R"({"prompt": ["a", "b"]})").prompts, ElementsAre(Prompt("a"), Prompt("b")));
  EXPECT_THAT(completion(R"({"prompt": [1, 256]})").prompts, ElementsAre(Prompt(Ids{1, 256})));
  EXPECT_THAT(completion(R"({"prompt": [[1], [2, 3]]})").prompts, ElementsAre(Prompt(Ids{1}), Prompt(Ids{2, 3})));
  for (const char* prompt : {"[]", "[[]]", "[1, \"a\"]", "[\"a\", 1]", "{}", "7", "[[\"a\"]]", "[[1], \"a\"]", "[257]",
                             "[-1]", "[1.5]", "null", "[{}]"}) {
    const auto error = completion_error(concat("{\"prompt\": ", prompt, "}"));
    ASSERT_TRUE(error) << prompt;
    EXPECT_EQ(error->answer().param, "prompt") << prompt;
    EXPECT_EQ(error->answer().status, 400);
  }
}

TEST(RequestReader, RefusesWrongTypesAndRangesWithTheField) {
  const std::vector<std::pair<const char*, const char*>> bad{
      {R"("temperature": "hot")", "temperature"},
      {R"("temperature": -0.1)", "temperature"},
      {R"("top_p": 0)", "top_p"},
      {R"("top_p": 1.1)", "top_p"},
      {R"("min_p": 2)", "min_p"},
      {R"("top_k": -2)", "top_k"},
      {R"("top_k": 1.5)", "top_k"},
      {R"("seed": 18446744073709551615)", "seed"},
      {R"("seed": "x")", "seed"},
      {R"("max_tokens": -1)", "max_tokens"},
      {R"("max_tokens": true)", "max_tokens"},
      {R"("n": 0)", "n"},
      {R"("n": 17)", "n"},
      {R"("best_of": 2)", "best_of"},
      {R"("logprobs": 21)", "logprobs"},
      {R"("logprobs": true)", "logprobs"},
      {R"("echo": 1)", "echo"},
      {R"("stream": "yes")", "stream"},
      {R"("stream_options": [])", "stream_options"},
      {R"("stream_options": {"include_usage": 1})", "stream_options.include_usage"},
      {R"("stop": "")", "stop"},
      {R"("stop": [1])", "stop"},
      {R"("stop": {})", "stop"},
      {R"("logit_bias": [])", "logit_bias"},
      {R"("logit_bias": {"x": 1})", "logit_bias"},
      {R"("logit_bias": {"257": 1})", "logit_bias"},
      {R"("logit_bias": {"1": 101})", "logit_bias.1"},
      {R"("presence_penalty": [])", "presence_penalty"},
      {R"("frequency_penalty": {})", "frequency_penalty"},
      {R"("repetition_penalty": 0)", "repetition_penalty"},
      {R"("ignore_eos": 0)", "ignore_eos"},
      {R"("suffix": "end")", "suffix"},
      {R"("model": 1)", "model"},
      {R"("response_format": "json")", "response_format"},
      {R"("response_format": {"type": "xml"})", "response_format.type"},
      {R"("response_format": {"type": "json_schema"})", "response_format.json_schema"},
      {R"("response_format": {"type": "json_schema", "json_schema": {}})", "response_format.json_schema.schema"},
  };
  for (const auto& [member, param] : bad) {
    const auto error = completion_error(concat("{\"prompt\": \"a\", ", member, "}"));
    ASSERT_TRUE(error) << member;
    EXPECT_EQ(error->answer().status, 400) << member;
    EXPECT_EQ(error->answer().param, param) << member;
  }
  EXPECT_EQ(completion_error(R"({"prompt": "a", "temperature": "hot"})")->answer().message,
            "temperature must be a number: got \"hot\"");
  EXPECT_EQ(completion_error(R"({"prompt": "a", "max_tokens": -1})")->answer().message,
            "max_tokens must be a whole number, at least 0: got -1");
}

/// Returns the field that a request is refused for; "" = it is accepted.
std::string refused_for(const std::string& route, ordered_json body) {
  const RequestReader reader(common());
  const auto error = error_of([&] {
    if (route == "completions") body.emplace("prompt", "a"), reader.completion(body.dump());
    if (route == "embeddings") body.emplace("input", "a"), reader.embedding(body.dump());
    if (route == "tokenize") body.emplace("prompt", "a"), reader.tokenize(body.dump());
    if (route != "chats") return;
    body.emplace("messages", ordered_json::parse(R"([{"role": "user", "content": "Hi"}])"));
    reader.chat(body.dump());
  });
  if (!error) return "";
  EXPECT_EQ(error->answer().status, 400);
  EXPECT_EQ(error->answer().code, "unsupported_parameter") << error->answer().message;
  return error->answer().param;
}

TEST(RequestReader, RefusesFieldsThatWouldChangeAnAnswer) {
  const std::vector<std::string> generations{"completions", "chats"};
  for (const char* members :
       {R"({"mirostat": 2})", R"({"min_tokens": 5})", R"({"stop_token_ids": [3]})", R"({"repeat_penalty": 1.1})",
        R"({"guided_json": {}})", R"({"structured_outputs": {"regex": "a"}})", R"({"grammar": "root ::= \"a\""})",
        R"({"typical_p": 0.9})", R"({"n_predict": 5})", R"({"include_stop_str_in_output": true})",
        R"({"repeat_last_n": 64, "presence_penalty": 1})", R"({"bad_words": ["a"]})", R"({"dry_multiplier": 0.8})"})
    for (const std::string& route : generations)
      EXPECT_EQ(refused_for(route, ordered_json::parse(members)), ordered_json::parse(members).begin().key()) << route;
  for (const char* members :
       {R"({"echo": true})", R"({"continue_final_message": true})", R"({"chat_template": "x"})",
        R"({"verbosity": "low"})", R"({"enable_thinking": false})", R"({"prompt": "a"})", R"({"documents": [{}]})"})
    EXPECT_EQ(refused_for("chats", ordered_json::parse(members)), ordered_json::parse(members).begin().key());
  const char* spoken = R"({"messages": [{"role": "user", "content": "a", "audio": {}}]})";
  EXPECT_EQ(refused_for("chats", ordered_json::parse(spoken)), "messages[0].audio");
  EXPECT_EQ(refused_for("completions", {{"reasoning_effort", "low"}}), "reasoning_effort");
  EXPECT_EQ(refused_for("completions", {{"stream_options", {{"continuous_usage_stats", true}}}}),
            "stream_options.continuous_usage_stats");
  EXPECT_EQ(refused_for("completions", {{"add_special_tokens", false}}), "add_special_tokens");
  EXPECT_EQ(refused_for("chats", {{"add_special_tokens", true}}), "add_special_tokens");
  EXPECT_EQ(refused_for("embeddings", {{"truncate_prompt_tokens", 5}}), "truncate_prompt_tokens");
  EXPECT_EQ(refused_for("tokenize", {{"return_token_strs", true}}), "return_token_strs");
}

TEST(RequestReader, AcceptsFieldsThatChangeNothing) {
  const ordered_json neutral = ordered_json::parse(R"({
    "mirostat": 0, "mirostat_tau": 5.0, "min_tokens": 0, "stop_token_ids": [], "repeat_penalty": 1.0, "grammar": "",
    "typical_p": 1, "tfs_z": 1.0, "n_predict": -1, "repeat_last_n": 64, "dry_multiplier": 0.0, "top_n_sigma": -1,
    "skip_special_tokens": true, "use_beam_search": false, "length_penalty": 1, "prompt_logprobs": null, "lora": [],
    "user": "ann", "store": true, "metadata": {"a": "b"}, "service_tier": "auto", "prediction": {"content": "x"},
    "stream_options": {"include_obfuscation": false}, "cache_prompt": true, "id_slot": -1, "priority": 1,
    "unknown_to_all_servers": 7})");
  EXPECT_EQ(refused_for("completions", neutral), "");
  EXPECT_EQ(refused_for("chats", neutral), "");
  EXPECT_EQ(refused_for("chats", {{"add_special_tokens", false}, {"reasoning_format", "auto"}, {"echo", false}}), "");
  EXPECT_EQ(refused_for("completions", {{"add_special_tokens", true}, {"echo", true}}), "");
  EXPECT_EQ(refused_for("completions", {{"repeat_last_n", -1}, {"presence_penalty", 1}}), "");
}

TEST(RequestReader, RefusesFormatsBesideFunctions) {
  const std::string tools = R"("tools": [{"type": "function", "function": {"name": "f"}}], )";
  const auto error_with = [&](const std::string& members, const ReaderOptions& options = common()) {
    const auto error = error_of([&] { chat(chat_with(tools + members), options); });
    return error ? error->answer().param + ": " + error->answer().message : "";
  };
  const char* want = R"(response_format: response_format must be {"type": "text"} beside tools: got JSON)";
  for (const char* choice : {R"("required")", R"({"function": {"name": "f"}})", R"("auto")"})
    for (const char* format :
         {R"({"type": "json_object"})", R"({"type": "json_schema", "json_schema": {"schema": {}}})"})
      EXPECT_THAT(error_with(concat(R"("response_format": )", format, R"(, "tool_choice": )", choice)), HasSubstr(want))
          << choice << format;
  EXPECT_EQ(error_with(R"("response_format": {"type": "json_object"}, "tool_choice": "none")"), "");
  EXPECT_EQ(error_with(R"("response_format": {"type": "text"}, "tool_choice": "required")"), "");
  ReaderOptions json = common();
  json.defaults.options.json_schema = "{}";
  EXPECT_THAT(error_with(R"("tool_choice": "auto")", json), HasSubstr("which this server's --json-schema demands"));
  EXPECT_EQ(error_with(R"("tool_choice": "required")", json), "");
  EXPECT_EQ(error_with(R"("response_format": {"type": "text"})", json), "");
}

TEST(RequestReader, AcceptsBoundsThatAreAllowed) {
  EXPECT_EQ(completion(R"({"prompt": "a", "max_tokens": 0, "echo": true, "suffix": ""})").options.max_tokens, 0);
  EXPECT_EQ(completion(R"({"prompt": "a", "temperature": 0, "top_p": 1, "stop": []})").options.sampling.temperature, 0);
  EXPECT_EQ(chat(chat_with(R"("modalities": ["text"], "functions": [])")).n, 1);
}

TEST(RequestReader, LimitsWhatABodyHolds) {
  ReaderOptions options = common();
  options.limits.stops = 2, options.limits.stop_bytes = 3, options.limits.bias_entries = 1;
  options.limits.embedding_inputs = 2, options.limits.max_n = 3, options.limits.members = 5;
  EXPECT_NO_THROW(
      completion(R"({"prompt": ["a", "b"], "n": 3, "stop": ["abc", "d"], "logit_bias": {"1": 1}})", options));
  for (const char* body :
       {R"({"prompt": ["a", "b", "c"]})", R"({"prompt": "a", "n": 4})", R"({"prompt": "a", "stop": ["a", "b", "c"]})",
        R"({"prompt": "a", "stop": "abcd"})", R"({"prompt": "a", "logit_bias": {"1": 1, "2": 1}})",
        R"({"prompt": "a", "b": 1, "c": 1, "d": 1, "e": 1, "f": 1})"})
    EXPECT_THROW(completion(body, options), http::RequestError) << body;
  const std::string deep = concat(R"({"prompt": "a", "x": )", std::string(63, '['), std::string(63, ']'), "}");
  EXPECT_NO_THROW(completion(deep));
  EXPECT_THROW(completion(concat(R"({"prompt": "a", "x": )", std::string(64, '['), std::string(64, ']'), "}")),
               http::RequestError);
}

TEST(RequestReader, RefusesBodiesThatAreNoObjects) {
  for (const char* body : {"", "{", "[]", "7", "null", "{\"prompt\": \"\xff\"}", "{\"prompt\": 1e999}", "{} {}",
                           R"({"prompt": "\ud800"})"}) {
    const auto error = completion_error(body);
    ASSERT_TRUE(error) << body;
    EXPECT_EQ(error->answer().status, 400) << body;
  }
  EXPECT_THAT(completion_error("{\"prompt\": \"\xff\"}")->what(), HasSubstr("UTF-8"));
}

TEST(RequestReader, RefusesOtherModelsIfItHasNames) {
  ReaderOptions options = common();
  options.names = {"tiny", "poet"};
  EXPECT_EQ(completion(R"({"model": "poet", "prompt": "a"})", options).model, "poet");
  EXPECT_NO_THROW(completion(R"({"model": "tiny", "prompt": "a"})", options));
  EXPECT_NO_THROW(completion(R"({"prompt": "a"})", options));
  const auto error = error_of([&] { completion(R"({"model": "large", "prompt": "a"})", options); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->answer().status, 404);
  EXPECT_EQ(error->answer().code, "model_not_found");
  EXPECT_THAT(error->what(), HasSubstr("the model large does not exist: this server has tiny, poet"));
  for (int i = 0; i < 10; ++i) options.names.push_back(std::to_string(i));
  EXPECT_THAT(error_of([&] { completion(R"({"model": "large", "prompt": "a"})", options); })->what(),
              HasSubstr("tiny, poet, 0, 1, 2, 3, 4, 5 and 4 others, as /v1/models lists"));
  EXPECT_NO_THROW(completion(R"({"model": "large", "prompt": "a"})"));
}

TEST(RequestReader, ConvertsFormatsToSchemas) {
  EXPECT_EQ(chat(chat_with(R"("response_format": {"type": "text"})")).options.json_schema, "");
  EXPECT_EQ(ordered_json::parse(chat(chat_with(R"("response_format": {"type": "json_object"})")).options.json_schema),
            ordered_json::parse(R"({"type": "object"})"));
  const ChatRequest request = chat(chat_with(
      R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}})"));
  EXPECT_EQ(ordered_json::parse(request.options.json_schema), ordered_json::parse(R"({"type": "integer"})"));
}

TEST(RequestReader, ReadsSchemasAsClientsOfLlamaCppSendThem) {
  for (const char* type : {"json_object", "json_schema"}) {
    const ChatRequest request =
        chat(chat_with(concat(R"("response_format": {"type": ")", type, R"(", "schema": {"type": "integer"}})")));
    EXPECT_EQ(ordered_json::parse(request.options.json_schema), ordered_json::parse(R"({"type": "integer"})")) << type;
  }
  for (const auto& [format, param] : std::vector<std::pair<const char*, const char*>>{
           {R"({"type": "text", "schema": {}})", "response_format.type"},
           {R"({"type": "json_object", "json_schema": {"schema": {}}})", "response_format.type"},
           {R"({"type": "json_schema", "schema": {}, "json_schema": {"schema": {}}})", "response_format.schema"}}) {
    const auto error = error_of([&format = format] { chat(chat_with(concat(R"("response_format": )", format))); });
    ASSERT_TRUE(error) << format;
    EXPECT_EQ(error->answer().param, param) << format;
  }
}

TEST(RequestReader, ReadsLimitsAndLogprobsOfChats) {
  EXPECT_EQ(chat(chat_with(R"("max_tokens": 7)")).options.max_tokens, 7);
  EXPECT_EQ(chat(chat_with(R"("max_tokens": 7, "max_completion_tokens": 9)")).options.max_tokens, 9);
  EXPECT_EQ(completion(R"({"prompt": "a", "max_tokens": 7, "max_completion_tokens": 9})").options.max_tokens, 9);
  EXPECT_EQ(chat(chat_with(R"("logprobs": true)")).options.logprobs, 0);
  EXPECT_EQ(chat(chat_with(R"("logprobs": true, "top_logprobs": 20)")).options.logprobs, 20);
  EXPECT_EQ(chat(chat_with(R"("logprobs": false, "top_logprobs": 0)")).options.logprobs, -1);
}

TEST(RequestReader, JoinsTextParts) {
  const ChatRequest request = chat(R"({"messages": [
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "ann"}]})");
  EXPECT_EQ(request.messages, ordered_json::parse(R"([{"role": "user", "content": "ab", "name": "ann"}])"));
}

TEST(RequestReader, ReadsArgumentsOfEarlierCalls) {
  const ChatRequest request = chat(R"({"messages": [{"role": "assistant", "content": null, "tool_calls": [
    {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}},
    {"function": {"name": "g", "arguments": ""}}, {"function": {"name": "h"}}]},
    {"role": "tool", "tool_call_id": "1", "content": "2"}]})");
  const ordered_json& calls = request.messages[0]["tool_calls"];
  EXPECT_EQ(calls[0]["function"]["arguments"], ordered_json::parse(R"({"a": 1})"));
  EXPECT_EQ(calls[1]["function"]["arguments"], ordered_json::object());
  EXPECT_EQ(calls[2]["function"]["arguments"], ordered_json::object());
}

TEST(RequestReader, GivesAssistantsWithoutContentAnEmptyText) {
  for (const char* content : {"", R"("content": null,)", R"("content": [],)"}) {
    const ChatRequest request = chat(concat(R"({"messages": [{"role": "assistant",)", content, R"("tool_calls": [
      {"function": {"name": "f"}}]}]})"));
    EXPECT_EQ(request.messages[0].value("content", "none"), "") << content;
  }
  const ChatRequest request =
      chat(R"({"messages": [{"role": "assistant", "content": "a", "tool_calls": []}, {"role": "assistant",
                             "content": "b", "tool_calls": null}]})");
  EXPECT_FALSE(request.messages[0].contains("tool_calls"));
  EXPECT_FALSE(request.messages[1].contains("tool_calls"));
}

TEST(RequestReader, RefusesChatsWithTheField) {
  const std::string tool = R"("tools": [{"type": "function", "function": {"name": "f"}}])";
  const std::vector<std::pair<std::string, std::string>> bad{
      {R"({})", "messages"},
      {R"({"messages": []})", "messages"},
      {R"({"messages": {}})", "messages"},
      {R"({"messages": [1]})", "messages[0]"},
      {R"({"messages": [{"content": "a"}]})", "messages[0].role"},
      {R"({"messages": [{"role": "user"}]})", "messages[0].content"},
      {R"({"messages": [{"role": "user", "content": 1}]})", "messages[0].content"},
      {R"({"messages": [{"role": "user", "content": ["a"]}]})", "messages[0].content[0]"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})", "messages[0].content[0].type"},
      {R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})", "messages[0].content[0].text"},
      {R"({"messages": [{"role": "assistant", "tool_calls": 1}]})", "messages[0].tool_calls"},
      {R"({"messages": [{"role": "assistant", "tool_calls": [{}]}]})", "messages[0].tool_calls[0].function"},
      {R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]})",
       "messages[0].tool_calls[0].function.arguments"},
      {R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[]"}}]}]})",
       "messages[0].tool_calls[0].function.arguments"},
      {chat_with(R"("tools": [{"function": {"name": "f", "parameters": {"type": "string"}}}])"),
       "tools[0].function.parameters.type"},
      {chat_with(R"("max_tokens": 0)"), "max_tokens"},
      {chat_with(R"("top_logprobs": 2)"), "top_logprobs"},
      {chat_with(R"("logprobs": 2)"), "logprobs"},
      {chat_with(R"("chat_template_kwargs": [])"), "chat_template_kwargs"},
      {chat_with(R"("modalities": ["text", "audio"])"), "modalities"},
      {chat_with(R"("audio": {})"), "audio"},
      {chat_with(R"("functions": [{}])"), "functions"},
      {chat_with(R"("function_call": "auto")"), "function_call"},
      {chat_with(R"("web_search_options": {})"), "web_search_options"},
      {chat_with(R"("tools": {})"), "tools"},
      {chat_with(R"("tools": [{"type": "web"}])"), "tools[0].type"},
      {chat_with(R"("tools": [{}])"), "tools[0].function"},
      {chat_with(R"("tools": [{"function": {"name": "a b"}}])"), "tools[0].function.name"},
      {chat_with(R"("tools": [{"function": {"name": "f"}}, {"function": {"name": "f"}}])"), "tools[1].function.name"},
      {chat_with(R"("tools": [{"function": {"name": "f", "parameters": []}}])"), "tools[0].function.parameters"},
      {chat_with(R"("tool_choice": "required")"), "tool_choice"},
      {chat_with(tool + R"(, "tool_choice": "any")"), "tool_choice"},
      {chat_with(tool + R"(, "tool_choice": {"function": {"name": "g"}})"), "tool_choice.function.name"},
      {chat_with(tool + R"(, "parallel_tool_calls": 1)"), "parallel_tool_calls"},
  };
  for (const auto& [body, param] : bad) {
    const auto error = error_of([&body = body] { chat(body); });
    ASSERT_TRUE(error) << body;
    EXPECT_EQ(error->answer().status, 400) << body;
    EXPECT_EQ(error->answer().param, param) << body;
  }
}

TEST(RequestReader, ReadsToolChoices) {
  const std::string tools =
      R"("tools": [{"type": "function", "function": {"name": "f"}}, {"function": {"name": "g"}}])";
  EXPECT_EQ(chat(chat_with("")).tool_choice.kind, ToolChoice::kNone);
  EXPECT_EQ(chat(chat_with(R"("tools": [])")).tool_choice.kind, ToolChoice::kNone);
  const ChatRequest free = chat(chat_with(tools));
  EXPECT_EQ(free.tool_choice.kind, ToolChoice::kAuto);
  EXPECT_THAT(free.function_names(), ElementsAre("f", "g"));
  EXPECT_EQ(free.options.json_schema, "");
  EXPECT_THAT(chat(chat_with(tools + R"(, "tool_choice": "none")")).function_names(), IsEmpty());
  const ChatRequest required = chat(chat_with(tools + R"(, "tool_choice": "required")"));
  EXPECT_EQ(required.tool_choice.kind, ToolChoice::kRequired);
  EXPECT_NE(required.options.json_schema, "");
  const ChatRequest named =
      chat(chat_with(tools + R"(, "tool_choice": {"type": "function", "function": {"name": "g"}})"));
  EXPECT_EQ(named.tool_choice.kind, ToolChoice::kNamed);
  EXPECT_EQ(named.tool_choice.name, "g");
}

TEST(RequestReader, ReadsEmbeddings) {
  const RequestReader reader(common());
  const EmbeddingRequest request = reader.embedding(R"({"input": ["a", "b"], "encoding_format": "base64"})");
  EXPECT_THAT(request.inputs, ElementsAre(Prompt("a"), Prompt("b")));
  EXPECT_TRUE(request.base64);
  EXPECT_FALSE(reader.embedding(R"({"input": [1]})").base64);
  for (const auto& [body, param] : std::vector<std::pair<const char*, const char*>>{
           {R"({})", "input"},
           {R"({"input": "a", "encoding_format": "hex"})", "encoding_format"},
           {R"({"input": "a", "dimensions": 3})", "dimensions"}})
    EXPECT_EQ(error_of([&reader, body = body] { reader.embedding(body); })->answer().param, param);
}

TEST(RequestReader, ReadsTextsToTokenize) {
  const RequestReader reader(common());
  const TokenizeRequest prompt = reader.tokenize(R"({"prompt": "a", "model": "tiny"})");
  EXPECT_EQ(std::get<std::string>(prompt.input), "a");
  EXPECT_EQ(prompt.model, "tiny");
  const TokenizeRequest messages = reader.tokenize(chat_with(""));
  EXPECT_EQ(std::get<ChatRequest>(messages.input).messages.size(), 1u);
  EXPECT_THAT(reader.detokenize(R"({"tokens": [1, 2]})").tokens, ElementsAre(1, 2));
  EXPECT_EQ(error_of([&] { reader.tokenize("{}"); })->answer().param, "prompt");
  EXPECT_EQ(error_of([&] { reader.tokenize(chat_with(R"("prompt": "a")")); })->answer().param, "prompt");
  EXPECT_EQ(error_of([&] { reader.detokenize(R"({"tokens": [257]})"); })->answer().param, "tokens");
  EXPECT_EQ(error_of([&] { reader.detokenize("{}"); })->answer().param, "tokens");
}

}  // namespace
}  // namespace colossal::serve::request_reader_test
