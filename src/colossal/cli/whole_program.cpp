#include "colossal/cli/whole_program.h"

#include "colossal/align/rows.h"

namespace colossal::cli {

run::Program whole_program(const run::Program* program) {
  return align::with_alignment(program ? *program : run::built_in());
}

}  // namespace colossal::cli
