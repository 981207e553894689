#include "colossal/serve/chat_prompt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"

namespace colossal::serve::chat_prompt_test {
namespace {

using ::testing::HasSubstr;

constexpr const char* kLines =
    "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}{% if thinks %}think;{% endif %}"
    "{% if add_generation_prompt %}assistant:{% endif %}";
constexpr const char* kWithTools = "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}assistant:";

ChatRequest request_of(const std::string& body) {
  return RequestReader({.defaults = request_defaults({}, {}), .vocabulary = 257}).chat(body);
}

std::string rendered(const char* source, const std::string& body, const std::string& system = "") {
  const text::ChatTemplate chat_template(source);
  return chat_prompt(request_of(body), &chat_template, system);
}

http::RequestError error_of(const char* source, const std::string& body) {
  try {
    rendered(source, body);
  } catch (const http::RequestError& error) {
    return error;
  }
  return http::RequestError(200, "no error");
}

TEST(ChatPrompt, EndsWhereTheAnswerBegins) {
  EXPECT_EQ(rendered(kLines, R"({"messages": [{"role": "user", "content": "Hi"}]})"), "user:Hi;assistant:");
}

TEST(ChatPrompt, PassesVariables) {
  EXPECT_EQ(rendered(kLines, R"({"messages": [{"role": "user", "content": "Hi"}],
                                 "chat_template_kwargs": {"thinks": true, "add_generation_prompt": true}})"),
            "user:Hi;think;assistant:");
}

TEST(ChatPrompt, RefusesVariablesThatTheTemplateDoesNotRead) {
  const auto body = [](const std::string& member) {
    return R"({"messages": [{"role": "user", "content": "Hi"}], )" + member + "}";
  };
  EXPECT_EQ(rendered("{{ reasoning_effort }};", body(R"("reasoning_effort": "low")")), "low;");
  EXPECT_EQ(rendered(kLines, body(R"("reasoning_effort": null, "chat_template_kwargs": {"enable_thinking": null})")),
            "user:Hi;assistant:");
  for (const auto& [member, param] : std::vector<std::pair<const char*, const char*>>{
           {R"("reasoning_effort": "low")", "reasoning_effort"},
           {R"("chat_template_kwargs": {"messages": []})", "chat_template_kwargs.messages"},
           {R"("chat_template_kwargs": {"add_generation_prompt": false})",
            "chat_template_kwargs.add_generation_prompt"},
           {R"("chat_template_kwargs": {"thin": 1})", "chat_template_kwargs.thin"},
           {R"("chat_template_kwargs": {"thinks": true, "think": 1, "enable_thinking": false})",
            "chat_template_kwargs.enable_thinking"}}) {
    const http::RequestError error = error_of(kLines, body(member));
    EXPECT_EQ(error.answer().status, 400);
    EXPECT_EQ(error.answer().param, param);
  }
}

TEST(ChatPrompt, CallsDevelopersSystem) {
  constexpr const char* kBody = R"({"messages": [{"role": "developer", "content": "Be brief"}]})";
  EXPECT_EQ(rendered(kLines, kBody), "system:Be brief;assistant:");
  EXPECT_EQ(rendered("{# developer #}{{ messages[0].role }}", kBody), "developer");
}

TEST(ChatPrompt, BeginsWithTheServersSystemMessage) {
  EXPECT_EQ(rendered(kLines, R"({"messages": [{"role": "user", "content": "Hi"}]})", "Rhyme"),
            "system:Rhyme;user:Hi;assistant:");
  EXPECT_EQ(rendered(kLines, R"({"messages": [{"role": "developer", "content": "Be brief"}]})", "Rhyme"),
            "system:Be brief;assistant:");
}

TEST(ChatPrompt, RendersCallsWithoutContentInTemplatesThatLookIntoIt) {
  constexpr const char* kStripped =
      "{% for m in messages %}{{ m.content.strip() }}{{ m.tool_calls|length }};{% endfor %}";
  for (const char* content : {"", R"("content": null,)"})
    EXPECT_EQ(rendered(kStripped, concat(R"({"messages": [{"role": "assistant",)", content,
                                         R"("tool_calls": [{"function": {"name": "f"}}]}]})")),
              "1;");
}

TEST(ChatPrompt, ShowsNoPathOfTheTemplate) {
  const text::ChatTemplate chat_template("{{ messages[0].name.x }}", "/srv/models/secret/chat_template.jinja");
  try {
    chat_prompt(request_of(R"({"messages": [{"role": "user", "content": "Hi"}]})"), &chat_template);
    FAIL();
  } catch (const http::RequestError& error) {
    EXPECT_THAT(error.answer().message, HasSubstr("the chat template, line 1: UndefinedError"));
    EXPECT_THAT(error.answer().message, ::testing::Not(HasSubstr("/srv")));
  }
}

TEST(ChatPrompt, RendersToolsUnlessTheChoiceIsNone) {
  const std::string body =
      R"({"messages": [{"role": "user", "content": "Hi"}], "tools": [{"function": {"name": "f"}}])";
  EXPECT_EQ(rendered(kWithTools, body + "}"), "f;assistant:");
  EXPECT_EQ(rendered(kWithTools, body + R"(, "tool_choice": "none"})"), "assistant:");
  EXPECT_EQ(rendered(kLines, body + R"(, "tool_choice": "none"})"), "user:Hi;assistant:");
}

TEST(ChatPrompt, RefusesTemplatesThatIgnoreTools) {
  const http::RequestError error =
      error_of(kLines, R"({"messages": [{"role": "user", "content": "Hi"}], "tools": [{"function": {"name": "f"}}]})");
  EXPECT_EQ(error.answer().status, 400);
  EXPECT_EQ(error.answer().param, "tools");
}

TEST(ChatPrompt, PassesRefusalsOfTheTemplate) {
  const http::RequestError error =
      error_of("{{ raise_exception('no such role') }}", R"({"messages": [{"role": "x", "content": ""}]})");
  EXPECT_EQ(error.answer().status, 400);
  EXPECT_EQ(error.answer().param, "messages");
  EXPECT_THAT(error.what(), HasSubstr("no such role"));
}

TEST(ChatPrompt, NeedsATemplate) {
  try {
    chat_prompt(request_of(R"({"messages": [{"role": "user", "content": "Hi"}]})"), nullptr);
    FAIL();
  } catch (const http::RequestError& error) {
    EXPECT_EQ(error.answer().status, 400);
    EXPECT_THAT(error.what(), HasSubstr("--chat-template"));
  }
}

TEST(FitToRoom, CutsLengths) {
  infer::GenerationOptions options{.max_tokens = kAsManyAsFit};
  fit_to_room(options, 4, 10, "prompt");
  EXPECT_EQ(options.max_tokens, 7);  // the model reads 4 + 6 tokens
  fit_to_room(options, 10, 10, "prompt");
  EXPECT_EQ(options.max_tokens, 1);
  options.max_tokens = 3;
  fit_to_room(options, 4, 10, "prompt");
  EXPECT_EQ(options.max_tokens, 3);
}

// A model whose frequencies change beyond 8 tokens: only max_tokens or a longer prompt crosses them.
TEST(FitToRoom, StaysWithinEvenPositionsWithoutMaxTokens) {
  const auto room = [](int64_t prompt, int64_t max_tokens) {
    infer::GenerationOptions options{.max_tokens = max_tokens};
    fit_to_room(options, prompt, 20, "prompt", 8);
    return options.max_tokens;
  };
  EXPECT_EQ(room(4, kAsManyAsFit), 5);
  EXPECT_EQ(room(8, kAsManyAsFit), 1);
  EXPECT_EQ(room(9, kAsManyAsFit), 12);
  EXPECT_EQ(room(4, 10), 10);
  EXPECT_EQ(room(4, 100), 17);
}

TEST(FitToRoom, RefusesLongPromptsWithBothNumbers) {
  infer::GenerationOptions options{.max_tokens = 0};
  try {
    fit_to_room(options, 11, 10, "messages");
    FAIL();
  } catch (const http::RequestError& error) {
    EXPECT_EQ(error.answer().code, "context_length_exceeded");
    EXPECT_EQ(error.answer().param, "messages");
    EXPECT_THAT(error.what(), HasSubstr("10 tokens: got 11 tokens"));
  }
}

TEST(FitToRoom, LeavesEndlessAnswersAlone) {
  infer::GenerationOptions options{.max_tokens = 1000, .attention_sinks = 4};
  fit_to_room(options, 11, 10, "prompt");
  EXPECT_EQ(options.max_tokens, 1000);
  options.max_tokens = kAsManyAsFit;
  fit_to_room(options, 11, 10, "prompt");
  EXPECT_EQ(options.max_tokens, 1);
}

}  // namespace
}  // namespace colossal::serve::chat_prompt_test
