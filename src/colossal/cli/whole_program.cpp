#include "colossal/cli/whole_program.h"

#include "colossal/align/rows.h"
#include "colossal/diffusion/rows.h"
#include "colossal/fold/rows.h"

namespace colossal::cli {

run::Program whole_program(const run::Program* program) {
  return fold::with_folding(diffusion::with_diffusion(align::with_alignment(program ? *program : run::built_in())));
}

}  // namespace colossal::cli
