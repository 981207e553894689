// The `colossal` program as a function, for the program itself and for programs with their own models.
//
//   int main(int argc, char** argv) {
//     colossal::Program program = colossal::built_in();               // run/program.h
//     program.models.add(own_architecture());
//     return colossal::main(argc, argv, program);     // own train x.toml, own generate --from runs/x, own export ...
//   }
#pragma once
#include <functional>

namespace colossal::models {
class Registry;
}
namespace colossal::run {
struct Program;
}

namespace colossal::cli {

/// Runs the whole program: selects the command that argv[1] names and runs it with end_with_message(). If a command
/// needs several ranks and no launcher started them, it starts them itself: this program again, with the same
/// arguments. Ignores SIGXFSZ, so that a write beyond a file-size limit is an error and does not end the process.
int main(int argc, char** argv);
/// Runs the whole program. Configs, run folders and Hugging Face folders may name any architecture and objective of
/// `program`. Calls memory::track_host_memory().
int main(int argc, char** argv, const run::Program& program);
/// Does the same with these architectures and the objectives of the library.
int main(int argc, char** argv, const models::Registry& models);

/// Runs `work` and returns its exit status. An exception becomes one message on stderr (`colossal: [component] ...`)
/// and status 1, or 2 for an invalid command line. HelpWanted is printed on stdout with status 0. If standard output
/// could not be written, prints a message and returns 1 instead of 0. Never throws.
int end_with_message(const std::function<int()>& work);

}  // namespace colossal::cli

namespace colossal {
using cli::main;
}
