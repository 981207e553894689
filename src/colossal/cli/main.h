// The program as a function: what `colossal` is, and what a program with models of its own is.
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

/// The whole program: picks the command that argv[1] names and runs it under end_with_message(). Where a command needs
/// several ranks and no launcher made them, it starts them: this program again, with the same words.
/// Ignores SIGXFSZ, so that a write beyond a file-size limit is an error and does not end the process.
int main(int argc, char** argv);
/// Runs the whole program, with configs, run folders and Hugging Face folders that may name any architecture and
/// objective of `program`.
int main(int argc, char** argv, const run::Program& program);
/// Runs the whole program with these architectures and the objectives of the library.
int main(int argc, char** argv, const models::Registry& models);

/// Runs `work` and returns its exit status; what it throws becomes one message on stderr (`colossal: [component] ...`)
/// and status 1, or 2 for a command line that cannot be understood. HelpWanted is printed on stdout and ends with 0.
/// A status of 0 becomes 1, with a message, if standard output could not be written.
/// Never throws.
int end_with_message(const std::function<int()>& work);

}  // namespace colossal::cli

namespace colossal {
using cli::main;
}
