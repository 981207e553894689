// The program that users start. Loading LibTorch takes a quarter of a second, so this program does not link it. It
// executes the commands that need no LibTorch itself (--version, help, drawings of schedules). For every other command
// it becomes `colossal-torch`, in the same process and with the same command line.
//
// Both programs link the same cli::main() and the same table of commands. The functions below replace the commands that
// need LibTorch. The linker finds them before the libraries, so it takes no code from there that would need LibTorch. A
// command that is missing here fails the link.
#include "colossal/cli/become.h"
#include "colossal/cli/commands.h"
#include "colossal/cli/held_stop_signals.h"
#include "colossal/cli/main.h"
#include "colossal/cli/plan.h"
#include "colossal/cli/reference.h"
#include "colossal/run/built_in_tables.h"
#include "colossal/run/objectives/data_keys.h"

namespace colossal::cli {

int bench(const Arguments& arguments) { become_torch("bench", arguments); }
int chat(const Arguments& arguments, const run::Program*) { become_torch("chat", arguments); }
int compare(const Arguments& arguments) { become_torch("compare", arguments); }
int draw(const Arguments& arguments, const run::Program*) { become_torch("draw", arguments); }
int latents(const Arguments& arguments, const run::Program*) { become_torch("latents", arguments); }
int embed(const Arguments& arguments, const run::Program*) { become_torch("embed", arguments); }
int evaluate(const Arguments& arguments, const run::Program*) { become_torch("evaluate", arguments); }
int expand(const Arguments& arguments, const run::Program*) { become_torch("expand", arguments); }
int export_model(const Arguments& arguments, const run::Program*) { become_torch("export", arguments); }
int features(const Arguments& arguments) { become_torch("features", arguments); }
int fold(const Arguments& arguments, const run::Program*) { become_torch("fold", arguments); }
int generate(const Arguments& arguments, const run::Program*) { become_torch("generate", arguments); }
int info(const Arguments& arguments) { become_torch("info", arguments); }
int list_models(const Arguments& arguments, const run::Program*) { become_torch("models", arguments); }
int print_command_reference(const std::vector<Command>&) { become_torch("help", {"--markdown"}); }
int print_config_reference(const run::Program*) { become_torch("help", {"config", "--markdown"}); }
std::vector<KeyHelp> own_table_keys(const run::Program*) { return run::describe_tables(run::built_in_tables()); }
std::vector<std::string> own_table_names(const run::Program*) {
  std::vector<std::string> names;
  for (const run::DescribedTable& table : run::built_in_tables()) names.push_back(table.name);
  return names;
}
std::vector<run::DataKeys> own_data_keys(const run::Program*) { return run::built_in_data_keys(); }
int plan_calibrate(const Arguments& arguments) { become_torch("plan", arguments); }
int plan_run(const PlanWishes& wishes, const run::Program*) { become_torch("plan", wishes.arguments); }
int quantize(const Arguments& arguments, const run::Program*) { become_torch("quantize", arguments); }
int run(const Arguments& arguments) { become_torch("run", arguments); }
int score(const Arguments& arguments, const run::Program*) { become_torch("score", arguments); }
int serve(const Arguments& arguments, const run::Program*) {
  const HeldStopSignals held;  // LibTorch's load takes a while
  become_torch("serve", arguments);
}
int train(const Arguments& arguments, const run::Program*) { become_torch("train", arguments); }

}  // namespace colossal::cli

int main(int argc, char** argv) { return colossal::cli::main(argc, argv); }
