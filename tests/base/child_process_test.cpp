// Child processes: their pipes, their ends, and what ends with them. No test depends on the speed of a process.
#include "colossal/base/child_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <string>

#include "colossal/base/error.h"
#include "support/thrown_message.h"

namespace colossal::child_process_test {
namespace {

using ::testing::HasSubstr;

constexpr double kLong = 60;  // seconds that no test takes

std::vector<std::string> shell(const std::string& script) { return {"sh", "-c", script}; }

/// Reads until a line has arrived, and returns it.
std::string line_of(ChildProcess& child) {
  std::string output, error;
  while (output.find('\n') == std::string::npos && !(child.output() < 0)) child.read(output, error, 1000);
  return output.substr(0, output.find('\n'));
}

/// Returns what `work` returns in a copy of this process.
std::string in_copy(const std::function<std::string()>& work) {
  int ends_of_pipe[2];
  EXPECT_EQ(pipe(ends_of_pipe), 0);
  const pid_t copy = fork();
  if (copy == 0) {
    const std::string text = work();
    [[maybe_unused]] const auto written = write(ends_of_pipe[1], text.data(), text.size());
    _exit(0);
  }
  close(ends_of_pipe[1]);
  std::string text;
  char buffer[1000];
  for (ssize_t count = 0; (count = read(ends_of_pipe[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(count));
  close(ends_of_pipe[0]);
  EXPECT_EQ(waitpid(copy, nullptr, 0), copy);
  return text;
}

/// Waits until a process that is no child of this one has ended, as a zombie too.
bool ends(pid_t process) {
  for (int i = 0; i < 10000; ++i) {
    const std::string path = "/proc/" + std::to_string(process) + "/stat";
    FILE* const file = fopen(path.c_str(), "r");
    if (!file) return true;
    char state = 0;
    const bool is_read = fscanf(file, "%*d (%*[^)]) %c", &state) == 1;
    fclose(file);
    if (!is_read || state == 'Z' || state == 'X') return true;
    usleep(1000);
  }
  return false;
}

TEST(ChildProcess, PassesLinesThroughItsPipes) {
  ChildProcess child(shell("while read -r line; do echo \"got $line\"; echo said >&2; done"), {.reads_input = true});
  std::string text = "one\n";
  child.write_from(text);
  EXPECT_EQ(text, "");
  std::string output, error;
  while (output.empty() || error.empty()) child.read(output, error, 1000);
  EXPECT_EQ(output, "got one\n");
  EXPECT_EQ(error, "said\n");
  EXPECT_FALSE(child.has_ended());
  child.close_input();
  ASSERT_TRUE(child.wait(kLong));
  EXPECT_EQ(child.status(), 0);
}

TEST(ChildProcess, FindsProgramsInThePath) {
  ChildProcess child({"true"});
  ASSERT_TRUE(child.wait(kLong));
  EXPECT_EQ(child.status(), 0);
}

TEST(ChildProcess, ReportsWhatCannotStart) {
  const auto start = [](std::vector<std::string> command) {
    return test::thrown_message([&] { ChildProcess child(command, {.has_own_group = true}); });
  };
  EXPECT_EQ(start({"no-such-program", "x"}),
            "[process] cannot start no-such-program: No such file or directory; give the name of a program in PATH, or "
            "the path of an executable file");
  EXPECT_THAT(start({"/etc"}), HasSubstr("cannot start /etc: Permission denied"));
  EXPECT_EQ(start({}), "[process] a command must have at least one word: got none");
}

TEST(ChildProcess, ReportsTheSignalThatEndedIt) {
  ChildProcess child(shell("kill -TERM $$"));
  ASSERT_TRUE(child.wait(kLong));
  EXPECT_EQ(child.status(), 128 + SIGTERM);
}

// More than a pipe holds: write_from() returns, and the rest stays.
TEST(ChildProcess, DoesNotWaitForAReader) {
  ChildProcess child({"sleep", "1000"}, {.reads_input = true});
  std::string text(1 << 20, 'x');
  child.write_from(text);
  EXPECT_LT(text.size(), size_t{1} << 20);
  EXPECT_GT(text.size(), 0u);
  EXPECT_GE(child.input(), 0);
}

// Without care, SIGPIPE would end this process.
TEST(ChildProcess, SurvivesAClosedInput) {
  ChildProcess child({"true"}, {.reads_input = true});
  ASSERT_TRUE(child.wait(kLong));
  std::string text = "x";
  child.write_from(text);
  EXPECT_EQ(text, "x");
  EXPECT_EQ(child.input(), -1);
  sigset_t pending;
  sigpending(&pending);
  EXPECT_FALSE(sigismember(&pending, SIGPIPE));
}

TEST(ChildProcess, KillsItsGroup) {
  pid_t grandchild = 0;
  {
    ChildProcess child(shell("sleep 1000 & echo $!; wait"), {.has_own_group = true});
    grandchild = std::stoi(line_of(child));
    EXPECT_EQ(::kill(grandchild, 0), 0);
    child.kill();
    ASSERT_TRUE(child.wait(kLong));
    EXPECT_EQ(child.status(), 128 + SIGKILL);
  }
  EXPECT_TRUE(ends(grandchild));
}

// The child has ended, but not what it has started.
TEST(ChildProcess, KillsItsGroupAfterItsEnd) {
  pid_t grandchild = 0;
  {
    ChildProcess child(shell("sleep 1000 & echo $!"), {.has_own_group = true});
    grandchild = std::stoi(line_of(child));
    ASSERT_TRUE(child.wait(kLong));
    EXPECT_EQ(::kill(grandchild, 0), 0);
  }
  EXPECT_TRUE(ends(grandchild));
}

TEST(ChildProcess, LeavesItsChildrenWithoutAGroup) {
  pid_t grandchild = 0;
  {
    ChildProcess child(shell("sleep 1000 >&- 2>&- & echo $!"));
    grandchild = std::stoi(line_of(child));
    ASSERT_TRUE(child.wait(kLong));
  }
  EXPECT_EQ(::kill(grandchild, SIGKILL), 0);
}

// A process in between starts a child with a child of its own, and gets SIGKILL.
TEST(ChildProcess, EndsWithTheProcessThatStartedIt) {
  int ends_of_pipe[2];
  ASSERT_EQ(pipe(ends_of_pipe), 0);
  const pid_t between = fork();
  if (between == 0) {
    ChildProcess child(shell("sleep 1000 & echo $$ $!; wait"), {.has_own_group = true});
    const std::string line = line_of(child) + "\n";
    [[maybe_unused]] const auto written = write(ends_of_pipe[1], line.data(), line.size());
    for (;;) pause();
  }
  char line[100] = {};
  ASSERT_GT(read(ends_of_pipe[0], line, sizeof line - 1), 0);
  pid_t child = 0, grandchild = 0;
  ASSERT_EQ(sscanf(line, "%d %d", &child, &grandchild), 2);
  ASSERT_EQ(::kill(between, SIGKILL), 0);
  ASSERT_EQ(waitpid(between, nullptr, 0), between);
  EXPECT_TRUE(ends(child));
  EXPECT_TRUE(ends(grandchild));
  close(ends_of_pipe[0]), close(ends_of_pipe[1]);
}

// SIGPIPE is ignored here, as in a process with ranks. A shell cannot undo that.
TEST(ChildProcess, GivesItTheUsualSignals) {
  const auto before = ::signal(SIGPIPE, SIG_IGN);
  ChildProcess child(shell("sh -c 'kill -PIPE $$'; test $? -gt 128"));
  ::signal(SIGPIPE, before);
  ASSERT_TRUE(child.wait(kLong));
  EXPECT_EQ(child.status(), 0);
}

TEST(ChildProcess, SetsVariables) {
  ChildProcess child(shell("echo $HOME $OWN"), {.variables = {"HOME=here", "OWN=a b"}});
  EXPECT_EQ(line_of(child), "here a b");
}

TEST(ChildProcess, GivesItNoOtherFiles) {
  int ends_of_pipe[2];
  ASSERT_EQ(pipe(ends_of_pipe), 0);  // without O_CLOEXEC
  ChildProcess child(shell("ls /proc/self/fd | tr '\\n' ' '; echo"));
  EXPECT_EQ(line_of(child), "0 1 2 3 ");  // 3 is the folder that ls reads
  close(ends_of_pipe[0]), close(ends_of_pipe[1]);
}

// The pipes would get their numbers, and be closed in the child or replace each other.
TEST(ChildProcess, WorksIfTheStandardDescriptorsAreClosed) {
  EXPECT_EQ(in_copy([] {
              close(STDIN_FILENO), close(STDOUT_FILENO), close(STDERR_FILENO);
              ChildProcess child(shell("read -r line; echo \"got $line\"; echo said >&2"), {.reads_input = true});
              std::string text = "one\n", output, error;
              child.write_from(text);
              while (child.output() >= 0 || child.error() >= 0) child.read(output, error, 1000);
              return output + error;
            }),
            "got one\nsaid\n");
}

// The limit holds for users without rights of root.
TEST(ChildProcess, NamesTheLimitOfProcesses) {
  EXPECT_EQ(
      in_copy([] {
        const rlimit none{};
        setrlimit(RLIMIT_NPROC, &none);
        if (geteuid() == 0 && setuid(65534) != 0) return std::string("no other user");
        return test::thrown_message([] { ChildProcess child({"true"}); });
      }),
      "[process] no process can be made for true: Resource temporarily unavailable; the user or the control group "
      "has as many processes as it may have: end others, or raise `ulimit -u` or pids.max");
}

}  // namespace
}  // namespace colossal::child_process_test
