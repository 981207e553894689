#include "colossal/cli/run_module.h"

#include <cstdio>
#include <filesystem>

#include "colossal/base/config.h"
#include "colossal/base/foreign_error.h"
#include "colossal/cli/auto_layout.h"
#include "colossal/cli/local_world.h"
#include "colossal/comm/launch/device.h"
#include "colossal/memory/account.h"
#include "colossal/run/objectives/data_keys.h"
#include "colossal/run/own_tables.h"

namespace colossal::cli {
namespace {

constexpr int kModuleFailed = 1, kModuleMisused = 2;

int print_usage(std::FILE* to, const std::string& program, int status) {
  std::fprintf(to,
               "usage: %s FILE.toml [--section.key=value ...]\n"
               "FILE.toml is a config; `colossal help config` lists its keys. Any key is also a flag.\n",
               program.c_str());
  return status;
}

/// Checks the config. auto_parallel::initialize(), which the module may use, takes parallel.plan and checks it against
/// its graph.
void check_module_config(const run::Config& config) {
  run::Config checked = config;
  checked.parallel.plan.clear();
  checked.validate();
  comm::choose_device(config.run.device, 0);
}

}  // namespace

int run_module(int argc, char** argv, const ModuleWork& work) {
  exit_on_uncaught_error();
  memory::track_host_memory();
  const Arguments words(argv + (argc > 0 ? 1 : 0), argv + argc);
  const std::string program = argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "program";
  if (!words.empty() && (words[0] == "--help" || words[0] == "-h")) return print_usage(stdout, program, 0);
  if (words.empty() || words[0].starts_with("-")) return print_usage(stderr, program, kModuleMisused);
  try {
    const auto config = read_config<run::Config>(words[0], {words.begin() + 1, words.end()});
    run::refuse_other_keys(config, {}, run::built_in_data_keys());
    check_module_config(config);  // before ranks start, so that an error is printed once
    const bool chooses = config.parallel.automatic;
    return with_ranks(
        chooses ? ranks_of_auto(config.parallel, config.run, comm::cuda_devices()) : config.parallel.ranks(), words,
        [&] {
          const auto world = join_run(config.run, comm::cuda_devices());
          say_stalls(*world);
          work(*world, config);
          return 0;
        });
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "%s: %s\n", program.c_str(), plain_message(as_error(error)).c_str());
    return kModuleFailed;
  }
}

}  // namespace colossal::cli
