// Tasks: prompts of the built-in ones equal those of the harness, and what bad files and data say.
#include "colossal/evaluate/task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/evaluate/evaluate.h"
#include "colossal/evaluate/records.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::evaluate::task_test {
namespace {

using nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kSort[] = R"(name = "sort"
data = "test.jsonl"
prompt = "{{prompt}}"
target = "{{answer}}"
metric = "exact"
)";

std::string error_of(const std::string& toml) {
  return test::thrown_message([&] { parse_task(toml, "mine.toml"); });
}

TEST(BuiltInTasks, WriteThePromptsOfTheHarness) {
  // made by harness_prompts.py
  const ordered_json made =
      ordered_json::parse(read_file(test::source_dir() + "/tests/evaluate/harness_prompts.json", 1 << 20));
  const test::TemporaryFolder folder;
  for (const auto& [name, content] : made["files"].items()) folder.write(name, content.get<std::string>());
  for (const auto& [name, by_shots] : made["tasks"].items())
    for (const auto& [shots, rows] : by_shots.items()) {
      SCOPED_TRACE(name + ", shots " + shots);
      const Task task = read_task(name);
      const std::vector<Part> parts = read_parts(task, {.data = folder.path(), .shots = std::stoi(shots)});
      ASSERT_EQ(parts.size(), 1u);
      ASSERT_EQ(parts[0].items.size(), rows.size());
      for (size_t i = 0; i < rows.size(); ++i) {
        const Item& item = parts[0].items[i];
        EXPECT_EQ(item.prompt, rows[i]["prompt"]);
        if (!task.is_choices()) {
          EXPECT_EQ(ordered_json(task.until), rows[i]["until"]);
          EXPECT_THAT(item.texts, ElementsAre(rows[i]["target"]));
          continue;
        }
        ordered_json continuations = ordered_json::array();
        for (const std::string& text : item.texts) continuations.push_back(task.delimiter + text);
        EXPECT_EQ(continuations, rows[i]["continuations"]);
        const ordered_json& right = rows[i]["right"];  // an index, or digits
        EXPECT_EQ(static_cast<int>(item.right),
                  right.is_string() ? std::stoi(right.get<std::string>()) : right.get<int>());
      }
    }
}

TEST(BuiltInTasks, HaveTheirSubjects) {
  EXPECT_EQ(read_task("mmlu").subjects.size(), 57u);
  EXPECT_EQ(read_task("cmmlu").subjects.size(), 67u);
  EXPECT_EQ(read_task("ceval").subjects.size(), 52u);
  EXPECT_EQ(read_task("mmlu_us_foreign_policy").subjects.at("us_foreign_policy"), "us foreign policy");
  for (const std::string& name : built_in_tasks()) EXPECT_EQ(read_task(name).name, name);
}

TEST(BuiltInTasks, NameThePublisherOfAMissingFile) {
  const test::TemporaryFolder empty;
  for (const std::string& name : built_in_tasks())
    EXPECT_THAT(test::thrown_message([&] { prepare({name}, {.data = empty.path()}); }),
                ::testing::ContainsRegex("no data for " + name + ": .* does not exist; get it from .*https://"));
  EXPECT_THAT(test::thrown_message([] { prepare({"gsm8k"}, {}); }), HasSubstr("set --data"));
}

TEST(Tasks, RefuseBadKeys) {
  const std::string sort = kSort;
  EXPECT_EQ(error_of(sort), "");
  EXPECT_THAT(error_of(sort + "metrics = \"exact\""), HasSubstr("mine.toml:6: unknown key `metrics`, did you mean "
                                                                "`metric`?; a task has these: name, kind, data"));
  EXPECT_THAT(error_of("name = \"x\"\ndata = \"d\"\nprompt = \"p\"\nmetric = \"exact\""),
              HasSubstr("must have a `target`: got none"));
  EXPECT_THAT(error_of(sort + "kind = \"choice\""), HasSubstr("did you mean `choices`?"));
  EXPECT_THAT(error_of(sort + "max_tokens = 0"), HasSubstr("must be at least 1"));
  EXPECT_THAT(error_of(sort + "choices = [\"a\", \"b\"]"), HasSubstr("`choices` has no effect on a task of kind gen"));
  EXPECT_THAT(error_of(sort + "pattern = \"a\""), HasSubstr("`pattern` has no effect"));
  EXPECT_THAT(error_of(sort + "counted = \"a\""), HasSubstr("`counted` has no effect"));
  EXPECT_THAT(error_of("name = "), HasSubstr("mine.toml:1"));
  EXPECT_THAT(error_of(sort + "[subjects]\na = 1"), HasSubstr("`subjects.a` must be the name of a subject"));
}

TEST(Tasks, RefuseBadMetrics) {
  const std::string start = "name = \"x\"\ndata = \"d\"\nprompt = \"p\"\ntarget = \"t\"\n";
  EXPECT_THAT(error_of(start), HasSubstr("must have a `metric`: got none; choose from exact, number"));
  EXPECT_THAT(error_of(start + "metric = [\"exact\", \"exat\"]"), HasSubstr("got exat, did you mean `exact`?"));
  EXPECT_THAT(error_of(start + "metric = \"regex\""), HasSubstr("the metric regex needs a `pattern`"));
  EXPECT_THAT(error_of(start + "metric = \"regex\"\npattern = \"(\""), HasSubstr("bad regular expression"));
  EXPECT_THAT(error_of(start + "metric = \"acc\""), HasSubstr("a metric of kind generate must be one of exact"));
  EXPECT_THAT(error_of(start + "kind = \"choices\"\nmetric = \"acc\""), HasSubstr("must have a `choices`"));
  EXPECT_THAT(parse_task(start + "kind = \"choices\"\nchoices = \"{{c}}\"", "x").metric,
              ElementsAre("acc", "acc_norm", "acc_bytes"));
}

TEST(Tasks, RefuseUnknownNames) {
  const auto message = [](const std::string& name) { return test::thrown_message([&] { read_task(name); }); };
  EXPECT_THAT(message("arc_eazy"), HasSubstr("unknown task arc_eazy, did you mean `arc_easy`?; name a file"));
  EXPECT_THAT(message("mmlu_cooking"), HasSubstr("unknown task mmlu_cooking"));
  EXPECT_THAT(message("/nowhere/x.toml"), HasSubstr("/nowhere/x.toml"));
  EXPECT_THAT(test::thrown_message([] { prepare({}, {}); }), HasSubstr("at least one task"));
}

class TaskFiles : public testing::Test {
 protected:
  std::string write(const std::string& data, const std::string& toml = kSort) const {
    folder.write("test.jsonl", data);
    return folder.write("mine.toml", toml);
  }
  std::string message(const std::string& data, const std::string& toml = kSort, const DataOptions& options = {}) const {
    const std::string path = write(data, toml);
    return test::thrown_message([&] { prepare({path}, options); });
  }
  const test::TemporaryFolder folder;
  const std::string choices = "kind = \"choices\"\nname = \"c\"\ndata = \"test.jsonl\"\nprompt = \"p\"\n";
};

TEST_F(TaskFiles, FindDataBesideThemOrInTheFolder) {
  const std::string task = write(R"({"prompt": "b a", "answer": "a b"})");
  EXPECT_EQ(prepare({task}, {})[0].parts[0].items[0].prompt, "b a");
  const test::TemporaryFolder other;
  other.write("test.jsonl", R"({"prompt": "d c", "answer": "c d"})");
  EXPECT_EQ(prepare({task}, {.data = other.path()})[0].parts[0].items[0].texts, std::vector<std::string>{"c d"});
  EXPECT_THAT(test::thrown_message([&] { prepare({task, task}, {}); }), HasSubstr("must not have one name: got sort"));
}

TEST_F(TaskFiles, NameTheLineOfATemplateThatFails) {
  EXPECT_THAT(message("{\"prompt\": \"a\", \"answer\": 1}\n\n{\"answer\": 2}\n"),
              ::testing::ContainsRegex("test.jsonl:3: .*mine.toml, prompt, line 1: UndefinedError: 'prompt' is undef"));
  EXPECT_THAT(message("{}", "name = \"a\"\ndata = \"test.jsonl\"\nprompt = \"{{\"\ntarget = \"\"\n"),
              HasSubstr("must have a `target`"));
  EXPECT_THAT(message("{}", "name = \"a\"\ndata = \"test.jsonl\"\nprompt = \"{{\"\ntarget = \"x\"\nmetric = \"f1\""),
              HasSubstr("mine.toml, prompt, line 1: TemplateSyntaxError"));
}

TEST_F(TaskFiles, NameBrokenData) {
  EXPECT_THAT(message(""), HasSubstr("test.jsonl: must have at least one record: got none"));
  EXPECT_THAT(message("{\"prompt\": 1, \"answer\": 2}\n{"), HasSubstr("test.jsonl:2"));
  std::filesystem::remove(folder / "test.jsonl");
  EXPECT_THAT(test::thrown_message([&] { prepare({folder / "mine.toml"}, {}); }), HasSubstr("does not exist"));
}

TEST_F(TaskFiles, RefuseTargetsThatAreNoChoice) {
  const std::string list = choices + "choices = \"{{c}}\"\ntarget = \"{{t}}\"\n";
  for (const char* bad : {"2", "-1", "\"z\"", "\"2\"", "null", "1.0"})
    EXPECT_THAT(message(std::string(R"({"c": ["a", "b"], "t": )") + bad + "}", list),
                HasSubstr("test.jsonl:1: a target must be the text of a choice or its index, 0 to 1: got"))
        << bad;
  EXPECT_THAT(message(R"({"c": "ab", "t": 0})", list), HasSubstr("choices must be a list: got \"ab\""));
  EXPECT_THAT(message(R"({"c": ["a"], "t": 0})", list), HasSubstr("choices must be at least two: got 1"));
}

TEST_F(TaskFiles, FindTheRightChoice) {
  const std::string list = choices + "choices = \"{{c}}\"\ntarget = \"{{t}}\"\n";
  const std::string task = write(R"({"c": ["a", "b"], "t": "b"}
{"c": ["a", "b"], "t": 1}
{"c": ["a", "b"], "t": "1"}
{"c": ["1", "0"], "t": "0"}
{"c": [1, 0], "t": 1}
)",
                                 list);
  const std::vector<PreparedTask> prepared = prepare({task}, {});
  for (const Item& item : prepared[0].parts[0].items) EXPECT_EQ(item.right, 1u) << item.line;
}

TEST_F(TaskFiles, ShowOtherLinesAsShots) {
  const std::string task = write(
      "{\"prompt\": 1, \"answer\": 2}\n{\"prompt\": 3, \"answer\": 4}\n"
      "{\"prompt\": 5, \"answer\": 6}\n");
  const auto prompts = [&](const DataOptions& options) {
    std::vector<std::string> texts;
    const std::vector<PreparedTask> prepared = prepare({task}, options);
    for (const Item& item : prepared[0].parts[0].items) texts.push_back(item.prompt);
    return texts;
  };
  EXPECT_THAT(prompts({.shots = 1}), ElementsAre("3 4\n\n1", "1 2\n\n3", "1 2\n\n5"));
  EXPECT_THAT(prompts({.shots = 2, .limit = 1}), ElementsAre("3 4\n\n5 6\n\n1"));
  EXPECT_THAT(prompts({.limit = 2}), ElementsAre("1", "3"));
  EXPECT_THAT(test::thrown_message([&] { prompts({.shots = 3}); }), HasSubstr("must have 4 lines for 3 shots: got 3"));
}

TEST_F(TaskFiles, MakeTurnsOfAChat) {
  const text::ChatTemplate chat(
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% "
      "endif %}");
  const std::string task = write("{\"prompt\": 1, \"answer\": 2}\n{\"prompt\": 3, \"answer\": 4}\n",
                                 std::string(kSort) + "description = \"Sort.\\n\"\n");
  const PreparedTask made = std::move(prepare({task}, {.shots = 1, .chat_template = &chat})[0]);
  EXPECT_EQ(made.parts[0].items[0].prompt, "<system>Sort.\n<user>3<assistant>4<user>1<assistant>");
  EXPECT_TRUE(made.is_chat);
  const text::ChatTemplate refusing("{{ raise_exception('no system') }}");
  EXPECT_THAT(test::thrown_message([&] { prepare({task}, {.chat_template = &refusing}); }),
              HasSubstr("test.jsonl:1: template, line 1: no system"));
}

std::vector<std::vector<std::string>> fields_of(const std::string& text) {
  std::vector<std::vector<std::string>> fields;
  for (const CsvRow& row : parse_csv(text, "x.csv")) fields.push_back(row.fields);
  return fields;
}

TEST(Csv, FollowsRfc4180) {
  using Rows = std::vector<std::vector<std::string>>;
  EXPECT_EQ(fields_of("a,b\r\nc,\n"), (Rows{{"a", "b"}, {"c", ""}}));
  EXPECT_EQ(fields_of("\"a,1\",\"say \"\"b\"\"\"\n\"two\nlines\",x"),
            (Rows{{"a,1", "say \"b\""}, {"two\nlines", "x"}}));
  EXPECT_EQ(fields_of("\xef\xbb\xbf"
                      "a\n\n \n\"\"\nb"),
            (Rows{{"a"}, {""}, {"b"}}));
  EXPECT_EQ(fields_of("in \"the\" middle,x"), (Rows{{"in \"the\" middle", "x"}}));
  EXPECT_EQ(parse_csv("\"a\nb\"\nc", "x.csv")[1].line, 3);
}

TEST(Csv, SkipsAHeaderThatNoFileNeeds) {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("x.csv", "q,choice0,a\n1,2,3\n"), headless = folder.write("y.csv", "1,2,3\n");
  const std::vector<std::string> columns{"q", "A", "a"};
  EXPECT_EQ(read_records(path, columns, 0)[0].members, ordered_json({{"q", "1"}, {"A", "2"}, {"a", "3"}}));
  EXPECT_EQ(read_records(path, columns, 0).size(), 1u);
  EXPECT_EQ(read_records(headless, columns, 0)[0].members["A"], "2");
}

TEST(BuiltInTasks, ReadBothFormsOfMmlu) {
  const test::TemporaryFolder folder;
  folder.write("mmlu/test/anatomy_test.csv", "question,choice0,choice1,choice2,choice3,answer\nWhat?,a,b,c,d,2\n");
  EXPECT_EQ(prepare({"mmlu_anatomy"}, {.data = folder.path()})[0].parts[0].items[0].right, 2u);
  EXPECT_THAT(test::thrown_message([&] { prepare({"mmlu"}, {.data = folder.path()}); }),
              HasSubstr("or name single subjects, such as mmlu_abstract_algebra"));
}

TEST(Csv, NamesTheLineOfAFault) {
  EXPECT_THAT(test::thrown_message([] { fields_of("a\n\"b"); }), HasSubstr("x.csv:2: a quoted field must end"));
  EXPECT_THAT(test::thrown_message([] { fields_of("a\nb\n\"c\"d"); }), HasSubstr("x.csv:3: a comma or the end"));
  EXPECT_THAT(test::thrown_message([] { fields_of("\xff"); }), HasSubstr("must be UTF-8"));
  const test::TemporaryFolder folder;
  const std::string path = folder.write("x.csv", "q,a\n1,2\n3\n");
  EXPECT_THAT(test::thrown_message([&] { read_records(path, {}, 0); }), HasSubstr("x.csv:3: a row must have 2 fields"));
  EXPECT_THAT(test::thrown_message([&] { read_records(path, {"one"}, 0); }), HasSubstr("change `columns`"));
  EXPECT_EQ(read_records(path, {}, 1)[0].members, ordered_json({{"q", "1"}, {"a", "2"}}));
}

}  // namespace
}  // namespace colossal::evaluate::task_test
