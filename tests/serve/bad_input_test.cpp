// Bad input gets 4xx with a message that says what to change, and adds no work.
#include "serve/test_service.h"

namespace colossal::serve_test::bad_input_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct BadInput {
  const char *path, *body;
  int status;
  const char *message, *param = nullptr, *code = nullptr;
};

constexpr const char *kCompletions = "/v1/completions", *kChats = "/v1/chat/completions",
                     *kEmbeddings = "/v1/embeddings";

void expect_error(const http::Reply& reply, const BadInput& input) {
  SCOPED_TRACE(concat(input.path, " ", input.body, " -> ", reply.body));
  EXPECT_EQ(reply.status, input.status);
  const Json error = Json::parse(reply.body, nullptr, false)["error"];
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(input.message));
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_EQ(error["param"], input.param ? Json(input.param) : Json());
  EXPECT_EQ(error["code"], input.code ? Json(input.code) : Json());
}

TEST(BadInput, GetsItsMessage) {
  const std::string longer(65, 'x'), longest(81, 'x');
  const std::string long_completion = R"({"prompt": ")" + longer + "\"}",
                    long_text = R"({"input": ")" + longest + "\"}",
                    long_chat = R"({"messages": [{"role": "user", "content": ")" + longer + "\"}]}";
  const std::string deep = std::string(70, '[') + std::string(70, ']');
  const std::vector<BadInput> inputs = {
      {kCompletions, "{", 400, "the body"},
      {kCompletions, "\"\xff\"", 400, "UTF-8"},
      {kCompletions, "[]", 400, "the body must be an object"},
      {kCompletions, deep.c_str(), 400, "64"},
      {kCompletions, R"({})", 400, "prompt must be", "prompt"},
      {kCompletions, R"({"prompt": ""})", 400, "prompt must have at least one token", "prompt"},
      {kCompletions, R"({"prompt": ["x", ""]})", 400, "prompt[1] must have at least one token", "prompt[1]"},
      {kCompletions, R"({"prompt": "x", "max_tokens": -1})", 400, "max_tokens", "max_tokens"},
      {kCompletions, R"({"prompt": "x", "temperature": "hot"})", 400, "temperature must be", "temperature"},
      {kCompletions, R"({"prompt": "x", "n": 17})", 400, "n must be", "n"},
      {kCompletions, R"({"prompt": [300]})", 400, "prompt must be", "prompt"},
      {kCompletions, R"({"prompt": "x", "suffix": "y"})", 400, "suffix", "suffix", "unsupported_parameter"},
      {kCompletions, long_completion.c_str(), 400, "64 tokens: got 65 tokens", "prompt", "context_length_exceeded"},
      {kCompletions, R"({"prompt": "x", "response_format": {"type": "json_schema", "json_schema":
         {"schema": {"$ref": "#"}}}})",
       400, "finite", "response_format"},
      {kCompletions, R"({"prompt": "x", "response_format": {"type": "json_schema", "json_schema":
         {"schema": {"properties": {"a": {"uniqueItems": true}}}}}})",
       400, "uniqueItems is supported for items whose values ", "response_format"},
      {kCompletions, R"({"prompt": "x", "response_format": {"type": "json_schema", "json_schema":
         {"schema": {"not": {}}}}})",
       400, "finite", "response_format"},
      {kChats, R"({"messages": [{"role": "user", "content": "Hi"}], "tool_choice": "required",
         "tools": [{"function": {"name": "f", "parameters": {"not": {}}}}]})",
       400, "finite", "tools"},
      {kChats, R"({"messages": []})", 400, "messages must be", "messages"},
      {kChats, R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})", 400, "images",
       "messages[0].content[0].type"},
      {kChats, long_chat.c_str(), 400, "64 tokens: got 81 tokens", "messages", "context_length_exceeded"},
      {kEmbeddings, R"({"input": 5})", 400, "input must be", "input"},
      {kEmbeddings, R"({"input": ""})", 400, "a text must fit", "input"},
      {kEmbeddings, R"({"input": ["x", ""]})", 400, "input[1]: a text must fit", "input[1]"},
      {kEmbeddings, long_text.c_str(), 400, "got 81 tokens", "input", "context_length_exceeded"},
      {"/tokenize", R"({})", 400, "prompt must be", "prompt"},
      {"/detokenize", R"({"tokens": [257]})", 400, "tokens must be", "tokens"},
  };
  TestService test;
  http::Client client = test.client();
  for (const BadInput& input : inputs) expect_error(client.post(input.path, input.body), input);
  EXPECT_THAT(test.replica.added(), IsEmpty());
  EXPECT_THAT(test.replica.embedded(), IsEmpty());
}

TEST(BadInput, FitsTheServersLimits) {
  TestOptions options;
  options.service.limits.max_depth = 3;
  options.service.limits.max_n = 2;
  TestService test(options);
  const BadInput n{kCompletions, R"({"prompt": "x", "n": 3})", 400, "2", "n"};
  expect_error(test.post(n.path, n.body), n);
  const BadInput deep{kCompletions, R"({"prompt": "x", "other": [[[1]]]})", 400, "3"};
  expect_error(test.post(deep.path, deep.body), deep);
}

TEST(BadInput, BoundsTheLogProbabilitiesOfARequest) {
  TestOptions options;
  options.service.limits.max_waiting = 100'000;
  TestService test(options);
  const auto body = [](int64_t tokens) {
    return Json{{"prompt", std::vector<std::string>(2048, "x")}, {"n", 16}, {"logprobs", 20}, {"max_tokens", tokens}}
        .dump();
  };
  const std::string large = body(6);  // 2048 * 16 * 6 * 21 = 4,128,768
  const BadInput refused{kCompletions, large.c_str(), 400, "at most 4000000 values in all choices: got 4128768",
                         "logprobs"};
  expect_error(test.post(refused.path, refused.body), refused);
  EXPECT_THAT(test.replica.added(), IsEmpty());
}

TEST(BadInput, NamesTheServersModel) {
  TestOptions options;
  options.opens = false;
  TestService test(options);
  serve::ServedModel model = test.model();
  model.demands_name = true;
  test.service.open(model, test.replica);
  const BadInput other{kCompletions,     R"({"prompt": "x", "model": "big"})", 404, "this server has tiny", "model",
                       "model_not_found"};
  expect_error(test.post(other.path, other.body), other);
  const BadInput shown{"/v1/models/big", "", 404, "this server has tiny", "model", "model_not_found"};
  expect_error(test.get(shown.path), shown);
  EXPECT_EQ(test.get("/v1/models/tiny").status, 200);
}

TEST(BadInput, NeedsAModelThatContinuesText) {
  TestOptions options;
  options.opens = false;
  TestService test(options);
  serve::ServedModel model = test.model();
  model.continues = false;
  model.schemas = nullptr;
  test.service.open(model, test.replica);
  for (const char* path : {kCompletions, kChats}) {
    const BadInput input{path, "{}", 400, "the model tiny does not continue text: use /v1/embeddings"};
    expect_error(test.post(input.path, input.body), input);
  }
}

TEST(BadInput, NeedsTemplatesAndEmbeddingsOfTheModel) {
  TestOptions options;
  options.opens = false;
  TestService test(options);
  serve::ServedModel model = test.model();
  model.chat_template = nullptr;
  model.check_embedding = nullptr;
  model.no_embeddings = "parallel.sequence divides hidden states";
  test.service.open(model, test.replica);
  const std::string chat = R"({"messages": [{"role": "user", "content": "Hi"}]})";
  for (const char* path : {kChats, "/tokenize"}) {
    const BadInput input{path, chat.c_str(), 400, "--chat-template", "messages"};
    expect_error(test.post(input.path, input.body), input);
  }
  const BadInput input{kEmbeddings, R"({"input": "x"})", 400, "parallel.sequence divides hidden states"};
  expect_error(test.post(input.path, input.body), input);
}

TEST(BadInput, NeedsTemplatesThatRenderTools) {
  TestOptions options;
  options.opens = false;
  TestService test(options);
  const text::ChatTemplate plain("{{ messages | length }}");
  serve::ServedModel model = test.model();
  model.chat_template = &plain;
  test.service.open(model, test.replica);
  const BadInput input{kChats,
                       R"({"messages": [{"role": "user", "content": "Hi"}], "tools": [{"function": {"name": "f"}}]})",
                       400, "does not render tools", "tools"};
  expect_error(test.post(input.path, input.body), input);
}

/// A tokenizer that refuses a text.
class PickyTokenizer final : public text::Tokenizer {
 public:
  std::vector<int64_t> encode(std::string_view text) const override {
    require(text.find('?') == std::string_view::npos, "tokenizer", "a text must have no question mark");
    return bytes_.encode(text);
  }
  std::string piece(int64_t id) const override { return bytes_.piece(id); }
  int64_t vocabulary_size() const override { return bytes_.vocabulary_size(); }
  int64_t end_id() const override { return bytes_.end_id(); }

 private:
  text::ByteTokenizer bytes_;
};

TEST(BadInput, PassesRefusalsOfTheTokenizer) {
  TestOptions options;
  options.opens = false;
  const PickyTokenizer picky;
  TestService test(options);
  serve::ServedModel model = test.model();
  model.tokenizer = &picky;
  test.service.open(model, test.replica);
  const std::string chat = R"({"messages": [{"role": "user", "content": "Why?"}]})";
  for (const BadInput& input : {BadInput{kCompletions, R"({"prompt": "Why?"})", 400, "no question mark", "prompt"},
                                BadInput{kChats, chat.c_str(), 400, "no question mark", "messages"},
                                BadInput{kEmbeddings, R"({"input": "Why?"})", 400, "no question mark", "input"},
                                BadInput{"/tokenize", R"({"prompt": "Why?"})", 400, "no question mark", "prompt"},
                                BadInput{"/tokenize", chat.c_str(), 400, "no question mark", "messages"}})
    expect_error(test.post(input.path, input.body), input);
}

}  // namespace
}  // namespace colossal::serve_test::bad_input_test
