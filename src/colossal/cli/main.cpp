#include "colossal/cli/main.h"

#include <csignal>
#include <cstdio>
#include <exception>
#include <string>

#include "colossal/base/foreign_error.h"
#include "colossal/base/suggest.h"
#include "colossal/base/version.h"
#include "colossal/cli/commands.h"
#include "colossal/cli/standard_output.h"

namespace colossal::cli {
namespace {

constexpr int kFailed = 1;
constexpr int kMisused = 2;

int run_command(const Arguments& words, const run::Program* program) {
  const std::vector<Command> all = commands(program);
  if (words.empty() || words[0] == "--help" || words[0] == "-h") return help({}, all);
  if (words[0] == "--version" || words[0] == "-V") {
    std::printf("colossal %s\n", version());
    return 0;
  }
  const Command* command = find_command(all, words[0]);
  if (command == nullptr) {
    throw UsageError("unknown command `" + words[0] + "`" + did_you_mean(words[0], names_of(all)) +
                     "; `colossal help` lists the commands");
  }
  return command->run(Arguments(words.begin() + 1, words.end()));
}

Arguments words_of(int argc, char** argv) { return {argv + (argc > 0 ? 1 : 0), argv + argc}; }

int fail(const std::string& message, int status) {
  std::fflush(stdout);
  // The message for an invalid command line already has the command's name: "colossal train: ...".
  const bool names_program = message.starts_with("colossal ");
  std::fprintf(stderr, "%s%s\n", names_program ? "" : "colossal: ", message.c_str());
  return status;
}

int checked(int status) {
  const auto failed = flush_standard_output();
  return failed && status == 0 ? fail(plain_message(*failed), kFailed) : status;
}

}  // namespace

int run_program(int argc, char** argv, const run::Program* program) {
  open_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond `ulimit -f` fails with a reason, as on a full disk
  return end_with_message([&] { return run_command(words_of(argc, argv), program); });
}

int main(int argc, char** argv) { return run_program(argc, argv, nullptr); }

int end_with_message(const std::function<int()>& work) {
  try {
    return checked(work());
  } catch (const HelpWanted& help) {
    std::fputs(help.what(), stdout);
    return checked(0);
  } catch (const UsageError& error) {
    return fail(error.what(), kMisused);
  } catch (const std::exception& error) {
    return fail(plain_message(as_error(error)), kFailed);
  }
}

}  // namespace colossal::cli
