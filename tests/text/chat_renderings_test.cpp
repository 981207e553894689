// Compares renderings of 21 chats by the templates of 67 models with transformers' renderings. The data is not part of
// the project, so the test skips if ../shared/data is absent.
#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>
#include <map>
#include <sstream>

#include "colossal/text/chat_template.h"
#include "support/paths.h"
#include "support/temporary_folder.h"

namespace colossal::text::chat_renderings_test {
namespace {

using nlohmann::ordered_json;

const std::string kFolder = test::source_dir() + "/../shared/data/chat-templates/";

std::string unpacked(const std::string& path) {
  std::string text, buffer(size_t{1} << 16, '\0');
  const gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return text;
  for (int count; (count = gzread(file, buffer.data(), static_cast<unsigned>(buffer.size()))) > 0;)
    text.append(buffer, 0, static_cast<size_t>(count));
  gzclose(file);
  return text;
}

std::tm time_of(const std::string& text) {
  std::tm time{};
  std::istringstream(text) >> std::get_time(&time, "%Y-%m-%dT%H:%M:%S");
  return time;
}

/// Returns the chats by the names of their cases.
std::map<std::string, Chat> chats_of(const ordered_json& cases) {
  std::map<std::string, Chat> chats;
  for (const auto& one : cases["cases"]) {
    Chat& chat = chats[one["case"].get<std::string>()];
    chat.messages = one["messages"];
    chat.tools = one["tools"];
    if (one.contains("documents")) chat.documents = one["documents"];
    chat.add_generation_prompt = one["add_generation_prompt"].get<bool>();
    chat.variables = one["variables"];
    chat.now = time_of(cases["now"].get<std::string>());
    chat.keeps_null = true;  // as in render_jinja_template(), which made the renderings
  }
  return chats;
}

void expect_rendering(const ChatTemplate& chat_template, const Chat& chat, const ordered_json& expected) {
  try {
    const std::string text = chat_template.render(chat).text;
    ASSERT_TRUE(expected.contains("text")) << "transformers raises " << expected << "; here it is " << text;
    EXPECT_EQ(text, expected["text"].get<std::string>());
  } catch (const TemplateError& error) {
    ASSERT_TRUE(expected.contains("error")) << error.what();
    EXPECT_EQ(error.kind(), expected["error"].get<std::string>());
    EXPECT_EQ(error.reason(), expected["message"].get<std::string>());
  }
}

TEST(ChatRenderings, EqualsTransformersForEveryTemplateAndChat) {
  if (!std::filesystem::exists(kFolder)) GTEST_SKIP() << "needs " << kFolder;
  const ordered_json cases = ordered_json::parse(test::read_all(kFolder + "cases.json"));
  const std::map<std::string, Chat> chats = chats_of(cases);
  std::map<std::string, ChatTemplate> templates;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder + "templates"))
    templates.emplace(
        entry.path().filename().string(),
        ChatTemplate(test::read_all(entry.path().string()), entry.path().filename().string(), cases["special_tokens"]));
  EXPECT_EQ(templates.size(), 67u);
  std::istringstream lines(unpacked(kFolder + "renderings.jsonl.gz"));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const ordered_json expected = ordered_json::parse(line);
    const auto name = expected["template"].get<std::string>(), chat = expected["case"].get<std::string>();
    SCOPED_TRACE(name + ", " + chat);
    expect_rendering(templates.at(name), chats.at(chat), expected);
  }
  EXPECT_EQ(count, 67 * 21);
}

}  // namespace
}  // namespace colossal::text::chat_renderings_test
