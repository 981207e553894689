// Ranks that read the terminal of `colossal run`, and the keys that stop and end a run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/comm/launch/rank_processes.h"
#include "dist/probe_process.h"
#include "dist/terminal.h"
#include "support/generated_text.h"
#include "support/paths.h"

namespace colossal::test::run_terminal_test {
namespace {

using testing::HasSubstr;
using testing::Not;
using Words = std::vector<std::string>;

/// Two ranks; rank 0 runs one script, rank 1 another one.
Words two_ranks(const std::string& first, const std::string& second) {
  return {program_path(), "run", "-n", "2",
          "--",           "sh",  "-c", concat("if [ $COLOSSAL_RANK = 0 ]; then ", first, "; else ", second, "; fi")};
}

TEST(RunTerminal, GivesItselfToTheRankThatReads) {
  for (const std::string from : {"", " < /dev/tty"}) {
    Terminal terminal(two_ranks(concat("read line", from, "; echo \"got <$line>\"; cat", from), "true"), clean());
    terminal.type("one line\n");
    EXPECT_TRUE(terminal.shows("got <one line>")) << terminal.output();
    terminal.type("two\n");
    EXPECT_TRUE(terminal.shows("two\r\ntwo")) << "echo and cat: " << terminal.output();
    terminal.type(kCtrlD);
    EXPECT_EQ(terminal.finish(), 0) << terminal.output();
  }
}

TEST(RunTerminal, GivesItselfToASecondReader) {
  const TemporaryFolder folder;  // rank 1 reads after rank 0 has read its line, and rank 0 ends last
  Terminal terminal(two_ranks("read line; echo \"first <$line>\"; echo > $TURN; until [ -e $END ]; do sleep 0.05; done",
                              "until [ -e $TURN ]; do sleep 0.05; done; read line; echo \"second <$line>\"; "
                              "echo > $END"),
                    clean({{"TURN", folder / "turn"}, {"END", folder / "end"}}));
  terminal.type("a\n");
  EXPECT_TRUE(terminal.shows("first <a>")) << terminal.output();
  terminal.type("b\n");
  EXPECT_TRUE(terminal.shows("second <b>")) << terminal.output();
  EXPECT_EQ(terminal.finish(), 0) << terminal.output();
}

TEST(RunTerminal, PassesCtrlCToEveryRank) {
  // before a rank reads
  Terminal before(two_ranks("echo begin; sleep 77", "echo begin; sleep 77"), clean());
  EXPECT_TRUE(before.shows("begin") && before.shows("begin")) << before.output();
  before.type(kCtrlC);
  EXPECT_EQ(before.finish(), 128 + SIGINT) << before.output();
  // after a rank got the terminal
  Terminal meanwhile(two_ranks("read line; echo \"got $line\"; read line",
                               "trap 'trap \"\" TERM; sleep 0.1; echo rank 1 got it; exit 130' INT; "
                               "echo begin; sleep 77 & wait"),
                     clean());
  EXPECT_TRUE(meanwhile.shows("begin")) << meanwhile.output();
  meanwhile.type("a\n");
  EXPECT_TRUE(meanwhile.shows("got a")) << meanwhile.output();
  meanwhile.type(kCtrlC);
  EXPECT_EQ(meanwhile.finish(), 128 + SIGINT) << meanwhile.output();
  EXPECT_THAT(meanwhile.output(), testing::AllOf(HasSubstr("rank 1 got it"), Not(HasSubstr("was killed"))));
}

/// Returns the number of processes in the session of `leader` that run `sleep`, and of those that are stopped.
std::pair<int, int> sleepers(int leader) {
  int running = 0, stopped = 0;
  for (const auto& entry : comm::list_processes()) {
    if (entry.session != leader) continue;
    std::ifstream file(concat("/proc/", entry.id, "/stat"));
    std::string line;
    std::getline(file, line);
    if (line.find("(sleep)") == std::string::npos) continue;
    (line.find(") T") == std::string::npos ? running : stopped) += 1;
  }
  return {running, stopped};
}

void expect_sleepers(const Terminal& terminal, std::pair<int, int> wanted) {
  for (int i = 0; i < 1000 && sleepers(terminal.process()) != wanted; ++i) usleep(10000);
  EXPECT_EQ(sleepers(terminal.process()), wanted) << terminal.output();
}

/// A run in a shell with job control.
class RunJob : public testing::Test {
 protected:
  void SetUp() override {
    if (find_program("bash").empty()) GTEST_SKIP() << "bash is not installed";
  }
  static std::string line_of(const Words& words) {
    std::string line;
    for (const std::string& word : words) line += "'" + word + "' ";
    return line;
  }
  static Words shell() { return {"bash", "--norc", "--noprofile", "-i"}; }
};

TEST_F(RunJob, StopsAndContinues) {
  Terminal terminal(shell(), clean({{"PS1", "ready> "}}));
  EXPECT_TRUE(terminal.shows("ready> "));
  terminal.type(line_of(two_ranks("read line; echo got \"$line.\"; sleep 77", "sleep 77")) + "\n");
  terminal.type("a\n");
  EXPECT_TRUE(terminal.shows("got a.")) << terminal.output();
  expect_sleepers(terminal, {2, 0});  // a shell that Ctrl-Z stops between fork and exec waits for ever
  for (int i = 0; i < 2; ++i) {
    terminal.type(kCtrlZ);
    EXPECT_TRUE(terminal.shows("Stopped")) << terminal.output();
    EXPECT_TRUE(terminal.shows("ready> ")) << terminal.output();
    expect_sleepers(terminal, {0, 2});
    terminal.type("fg\n");
    expect_sleepers(terminal, {2, 0});
  }
  terminal.type(kCtrlC);
  EXPECT_TRUE(terminal.shows("ready> ")) << terminal.output();
  terminal.type("echo status $?\n");
  EXPECT_TRUE(terminal.shows("status 130\r")) << terminal.output();
}

TEST_F(RunJob, WaitsInTheBackgroundForTheTerminal) {
  Terminal terminal(shell(), clean({{"PS1", "ready> "}}));
  EXPECT_TRUE(terminal.shows("ready> "));
  terminal.type(line_of(two_ranks("echo begin; read line; echo got \"$line.\"", "true")) + "&\n");
  EXPECT_TRUE(terminal.shows("begin\r")) << terminal.output();
  // A shell reports a stopped job before its next prompt.
  for (int i = 0; i < 100 && terminal.output().find("Stopped") == std::string::npos; ++i) {
    terminal.type("\n");
    EXPECT_TRUE(terminal.shows("ready> ")) << terminal.output();
    usleep(20000);
  }
  EXPECT_THAT(terminal.output(), HasSubstr("Stopped"));
  terminal.type("fg\n");
  EXPECT_TRUE(terminal.shows("fg\r")) << terminal.output();
  terminal.type("a\n");
  EXPECT_TRUE(terminal.shows("got a.")) << terminal.output();
}

/// `colossal chat` with two ranks.
class ChatTerminal : public testing::Test {
 protected:
  void SetUp() override {
    test::write_model(folder, "llama-tiny");
    folder.write("hf/chat_template.jinja", "{% for m in messages %}{{ m.content }}|{% endfor %}");
  }
  Words chat() const {
    return {program_path(), "chat", "--from",     folder / "hf", "--tokenizer",         "bytes",
            "--max-tokens", "4",    "--kv-cache", "1MiB",        "--parallel.tensor=2", "--run.device=cpu"};
  }
  TemporaryFolder folder;
};

TEST_F(ChatTerminal, AnswersAndEndsWithTheInput) {
  Terminal terminal(chat(), clean());
  EXPECT_TRUE(terminal.shows("> ")) << terminal.output();
  for (const int rank : children_of(terminal.process())) {
    std::ifstream file(concat("/proc/", rank, "/comm"));
    std::string name;
    std::getline(file, name);
    EXPECT_EQ(name, "colossal-torch") << "the name of a rank in `ps`";
  }
  for (int i = 0; i < 2; ++i) {
    terminal.type("Hi\n");
    EXPECT_TRUE(terminal.shows("the answer stops after 4 tokens")) << terminal.output();
  }
  terminal.type(kCtrlD);
  EXPECT_EQ(terminal.finish(), 0) << terminal.output();
}

TEST_F(ChatTerminal, EndsAfterCtrlC) {
  Terminal terminal(chat(), clean());
  EXPECT_TRUE(terminal.shows("> ")) << terminal.output();
  terminal.type("Hi\n");
  EXPECT_TRUE(terminal.shows("the answer stops after 4 tokens")) << terminal.output();
  EXPECT_TRUE(terminal.shows("> ")) << terminal.output();
  terminal.type(kCtrlC);
  EXPECT_EQ(terminal.finish(), 128 + SIGINT) << terminal.output();
  EXPECT_THAT(terminal.output(), Not(HasSubstr("ended with status")));
}

}  // namespace
}  // namespace colossal::test::run_terminal_test
