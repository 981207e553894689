#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "colossal/base/error.h"
#include "colossal/cli/commands.h"
#include "colossal/cli/local_world.h"
#include "colossal/run/expanded_folder.h"
#include "colossal/run/program.h"

namespace colossal::cli {

int expand(const Arguments& arguments, const run::Program* program) {
  CLI::App app(
      "Writes a Hugging Face folder with the vocabulary of a new tokenizer, whose first ids are those of the old one.",
      "colossal expand");
  run::ExpansionRequest r;
  const std::vector<std::string> names = run::new_rows_names();
  std::string rows = names.front();
  app.add_option("--from", r.from, "Hugging Face folder of the model, with its tokenizer")->required();
  app.add_option("--tokenizer", r.tokenizer, "folder or file of the new tokenizer; old ids must keep their pieces")
      ->required();
  app.add_option("--to", r.to, "folder to write; it must not exist")->required();
  app.add_option(
         "--rows", rows,
         "values of the new rows of embedding and head: mean = of the old tokens of the new piece, all = mean of "
         "all old rows, drawn = near that mean, with 1e-9 times the covariance of the old rows")
      ->capture_default_str()
      ->check(CLI::IsMember(names));
  app.add_option("--seed", r.seed, "seed of --rows drawn")->capture_default_str();
  parse(app, arguments);
  r.rows = static_cast<run::NewRows>(std::find(names.begin(), names.end(), rows) - names.begin());
  if (r.rows != run::NewRows::Drawn) refuse_options(app, {"--seed"}, "without --rows drawn: nothing is drawn");
  const run::Expanded done = run::expand_vocabulary(r, program ? program->models : run::built_in().models);
  say(concat("added ", done.expansion.count, " rows, from row ", done.expansion.first, " of ", done.vocabulary, " on"));
  if (r.rows == run::NewRows::Mean && done.unwritable > 0)
    say(concat("the old tokenizer cannot write ", done.unwritable,
               " of the new pieces: they have the mean of all rows"));
  std::printf("%s\n", r.to.c_str());
  return 0;
}

}  // namespace colossal::cli
