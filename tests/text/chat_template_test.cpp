// Chat templates from a program's view: reading from folders, special tokens, spans and errors.
#include "colossal/text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::text::chat_template_test {
namespace {

using nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kSimple[] =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

Chat hello() {
  Chat chat;
  chat.messages = {{{"role", "user"}, {"content", "Hello"}}};
  return chat;
}

TEST(ChatTemplate, RendersMessages) {
  const ChatTemplate chat_template(kSimple, "simple", {{"eos_token", "</s>"}});
  Chat chat = hello();
  EXPECT_EQ(chat_template.render(chat).text, "<user>Hello</s>");
  chat.add_generation_prompt = true;
  EXPECT_EQ(chat_template.render(chat).text, "<user>Hello</s><assistant>");
  chat.variables = {{"eos_token", "|"}};
  EXPECT_EQ(chat_template.render(chat).text, "<user>Hello|<assistant>")
      << "a chat's variables come before the folder's";
}

TEST(ChatTemplate, ReadsEveryFileOfAFolder) {
  const test::TemporaryFolder folder;
  const auto text = [&] { return ChatTemplate::read(folder.path()).render(hello()).text; };
  EXPECT_FALSE(has_chat_template(folder.path()));
  EXPECT_THAT(test::thrown_message(text), HasSubstr("has no chat template: give a folder with chat_template.jinja"));
  folder.write("chat_template.json", R"({"chat_template": "old {{ messages[0].content }}"})");
  EXPECT_EQ(text(), "old Hello");
  EXPECT_TRUE(has_chat_template(folder.path()));
  folder.write("tokenizer_config.json",
               R"({"chat_template": "{{ bos_token }}{{ eos_token }}{{ messages[0].content }}", "bos_token": "<s>",
                   "eos_token": {"__type": "AddedToken", "content": "</s>", "lstrip": false}})");
  EXPECT_EQ(text(), "<s></s>Hello");
  folder.write("special_tokens_map.json", R"({"bos_token": {"content": "<b>"}, "additional_special_tokens": ["<x>"]})");
  EXPECT_EQ(text(), "<b></s>Hello");
  folder.write("tokenizer_config.json",
               R"({"chat_template": "{{ bos_token }}", "bos_token": "<s>", "added_tokens_decoder": {}})");
  EXPECT_EQ(text(), "<s>") << "special_tokens_map.json is of older folders";
  folder.write("chat_template.jinja", "file {{ messages[0].content }}\n");
  EXPECT_EQ(text(), "file Hello");
}

TEST(ChatTemplate, ChoosesOneOfSeveralTemplates) {
  const test::TemporaryFolder folder;
  folder.write("tokenizer_config.json", R"({"chat_template": [{"name": "default", "template": "plain"},
                                                              {"name": "tool_use", "template": "tools"}]})");
  Chat chat = hello();
  EXPECT_EQ(ChatTemplate::read(folder.path()).render(chat).text, "plain");
  chat.tools = ordered_json::array();
  EXPECT_EQ(ChatTemplate::read(folder.path()).render(chat).text, "tools");
  folder.write("chat_template.jinja", "main");
  folder.write("additional_chat_templates/rag.jinja", "rag");
  const ChatTemplate chat_template = ChatTemplate::read(folder.path());
  EXPECT_THAT(chat_template.names(), ElementsAre("default", "rag"));
  EXPECT_EQ(chat_template.source(), "main");
  EXPECT_EQ(chat_template.render(chat).text, "main");
  chat.template_name = "rag";
  EXPECT_EQ(chat_template.render(chat).text, "rag");
  chat.template_name = "nope";
  EXPECT_THAT(test::thrown_message([&] { chat_template.render(chat); }),
              HasSubstr("no template named nope; name one of these: default, rag"));
}

// The folder of an adapter often has a template and nothing else of a tokenizer.
TEST(ChatTemplate, FindsTheFirstFolderWithATemplate) {
  const test::TemporaryFolder adapter, model;
  const auto found = [&](const std::string& file = "") {
    const auto chat_template = ChatTemplate::find(file, {"bytes", adapter.path(), "", model.path()});
    return chat_template ? chat_template->render(hello()).text : "none";
  };
  const std::string words = "{{ messages[0].content }}{{ bos_token }}{{ eos_token }}";
  EXPECT_EQ(found(), "none");
  EXPECT_FALSE(ChatTemplate::find("", {}).has_value());
  const std::string file = model.write("own.jinja", "own " + words);
  EXPECT_EQ(found(file), "own Hello") << "no folder defines special tokens";
  model.write("tokenizer_config.json", R"({"chat_template": "of the model", "bos_token": "<s>", "eos_token": "</s>"})");
  EXPECT_EQ(found(), "of the model");
  EXPECT_EQ(found(file), "own Hello<s></s>");
  adapter.write("tokenizer_config.json", R"({"chat_template": null})");
  EXPECT_EQ(found(), "of the model");
  adapter.write("chat_template.jinja", words);
  EXPECT_EQ(found(), "Hello<s></s>") << "special tokens of the model";
  adapter.write("tokenizer_config.json", R"({"bos_token": null, "eos_token": "<end>"})");
  EXPECT_EQ(found(), "Hello<end>") << "an adapter with special tokens has all of them";
  EXPECT_EQ(found(file), "own Hello<end>");
  EXPECT_EQ(ChatTemplate::find("", {model.write("tokenizer.json", "{}")})->source(), "of the model")
      << "a file in the folder";
}

TEST(ChatTemplate, FindsWordsInTheSourceThatRenders) {
  const test::TemporaryFolder folder;
  folder.write("tokenizer_config.json", R"({"chat_template": [{"name": "default", "template": "{# developer #}"},
                                                              {"name": "tool_use", "template": "tools"}]})");
  const ChatTemplate chat_template = ChatTemplate::read(folder.path());
  Chat chat = hello();
  EXPECT_TRUE(chat_template.mentions(chat, "developer"));
  EXPECT_FALSE(chat_template.mentions(chat, "tools"));
  chat.tools = ordered_json::array();
  EXPECT_FALSE(chat_template.mentions(chat, "developer"));
}

TEST(ChatTemplate, ReportsSpansOfTheAssistant) {
  const ChatTemplate chat_template(
      "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}.{% endgeneration %}"
      "{% else %}[{{ m.content }}]{% endif %}{% endfor %}");
  Chat chat = hello();
  chat.messages.push_back({{"role", "assistant"}, {"content", "Gr\303\274\303\237e"}});
  chat.messages.push_back({{"role", "user"}, {"content", "?"}});
  chat.messages.push_back({{"role", "assistant"}, {"content", "!"}});
  const RenderedChat rendered = chat_template.render(chat);
  EXPECT_EQ(rendered.text, "[Hello]Gr\303\274\303\237e.[?]!.");
  ASSERT_EQ(rendered.assistant.size(), 2u);
  const auto said = [&](size_t i) {
    return rendered.text.substr(rendered.assistant[i].begin, rendered.assistant[i].end - rendered.assistant[i].begin);
  };
  EXPECT_EQ(said(0), "Gr\303\274\303\237e.");
  EXPECT_EQ(said(1), "!.");
}

TEST(ChatTemplate, PassesMessagesLikeTransformers) {
  const ChatTemplate chat_template("{{ messages[0] }}");
  Chat chat;
  chat.messages = {{{"role", "assistant"}, {"content", nullptr}, {"reasoning", "hm"}}};
  EXPECT_EQ(chat_template.render(chat).text,
            "{'thinking': 'hm', 'role': 'assistant', 'reasoning': 'hm', 'reasoning_content': 'hm'}");
  chat.keeps_null = true;
  EXPECT_THAT(chat_template.render(chat).text, HasSubstr("'content': None"));
}

TEST(ChatTemplate, FormatsTheGivenTime) {
  const ChatTemplate chat_template("{{ strftime_now('%d %b %Y') if strftime_now is defined else 'no clock' }}");
  Chat chat = hello();
  EXPECT_EQ(chat_template.render(chat).text, "no clock");
  std::tm now{};
  now.tm_year = 126, now.tm_mon = 10, now.tm_mday = 22;
  chat.now = now;
  EXPECT_EQ(chat_template.render(chat).text, "22 Nov 2026");
}

TEST(ChatTemplate, NamesTemplateLineAndRemedyInErrors) {
  const auto render = [](const std::string& source, const Chat& chat = hello()) {
    return test::thrown_message([&] { ChatTemplate(source, "mine").render(chat); });
  };
  EXPECT_EQ(render("a\n\n{{ nope.x }}"),
            "[chat template] mine, line 3: UndefinedError: 'nope' is undefined; the template does not fit these "
            "messages, tools or variables: change either");
  EXPECT_EQ(render("{{ raise_exception('No\nsystem') }}"),
            "[chat template] mine, line 1: No?system; the template refuses these messages: change them");
  EXPECT_EQ(render("\n{% for x in %}"),
            "[chat template] mine, line 2: TemplateSyntaxError: Expected an expression, got 'end of statement block'; "
            "fix the template");
  EXPECT_THAT(render("{{ 'a'.encode() }}"), HasSubstr("docs/reference/chat-templates.md lists what is supported"));
  EXPECT_THAT(render("\xff"), HasSubstr("mine must be UTF-8"));
  Chat chat;
  chat.messages = {"Hello"};
  EXPECT_THAT(render("", chat), HasSubstr("messages must be objects, got string"));
  try {
    ChatTemplate("{{ raise_exception('No\nsystem') }}").render(hello());
    FAIL();
  } catch (const TemplateError& error) {
    EXPECT_EQ(error.kind(), "raise_exception");
    EXPECT_EQ(error.reason(), "No\nsystem");
    EXPECT_EQ(error.line(), 1);
  }
}

TEST(ChatTemplate, ParsesChatsFromJson) {
  const Chat chat = parse_chat(R"({"messages": [{"role": "user"}], "tools": [{}], "add_generation_prompt": true,
                                   "chat_template_kwargs": {"enable_thinking": false}, "source": 7})");
  EXPECT_EQ(chat.messages.size(), 1u);
  EXPECT_EQ(chat.tools.size(), 1u);
  EXPECT_TRUE(chat.add_generation_prompt);
  EXPECT_EQ(chat.variables["enable_thinking"], false);
  EXPECT_EQ(parse_chat(R"([{"role": "user"}, {}])").messages.size(), 2u);
  EXPECT_THAT(test::thrown_message([] { parse_chat("{"); }), HasSubstr("must be JSON"));
  EXPECT_THAT(test::thrown_message([] { parse_chat("{}"); }), HasSubstr("an object with \"messages\""));
  EXPECT_THAT(test::thrown_message([] { parse_chat(std::string(1000, '[')); }), HasSubstr("nested too deeply"));
}

}  // namespace
}  // namespace colossal::text::chat_template_test
