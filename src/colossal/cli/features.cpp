#include "colossal/data/folding/features.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/file_name.h"
#include "colossal/cli/commands.h"
#include "colossal/cli/local_world.h"
#include "colossal/cli/standard_output.h"
#include "colossal/data/folding/template_folder.h"
#include "colossal/fold/fold.h"
#include "colossal/protein/alignment.h"
#include "colossal/protein/fasta.h"
#include "colossal/run/feature_file.h"

namespace colossal::cli {
namespace {

constexpr int64_t kMostTemplates = 4;  // as many as AlphaFold reads

struct FeaturesRequest {
  std::string input, templates, to;
  std::vector<std::string> alignments;
  data::FeatureOptions options;
};

/// Returns the one chain of a FASTA file.
data::FoldingChain chain_of_file(const std::string& path) {
  const std::vector<protein::FastaRecord> records = protein::read_fasta(path);
  const protein::FastaRecord& first = records.at(0);
  require(records.size() == 1, "features", path,
          " must have one record, because a file of features has one chain: got ", records.size(),
          "; write each record to a file of its own, or give them all to `colossal fold`");
  require(first.chains.size() == 1, "features", path, ":", first.line,
          ": a record must be one chain: got a complex of ", first.chains.size(),
          "; fold complexes with `colossal fold`");
  return {.name = first.name, .sequence = first.chains[0], .place = concat(path, ":", first.line)};
}

void read_alignments(const FeaturesRequest& r, data::FoldingChain& chain) {
  std::vector<protein::Alignment> parts;
  for (const std::string& path : r.alignments) {
    parts.push_back(protein::read_alignment(path));
    protein::require_query(parts.back(), chain.sequence, chain.place);
  }
  if (parts.empty()) return;
  chain.alignment = protein::join_alignments(parts);
  for (const std::string& notice : chain.alignment.notices) say(notice);
}

void find_templates(FeaturesRequest& r, data::FoldingChain& chain) {
  if (r.templates.empty()) return;
  r.options.templates = kMostTemplates;
  data::FoundTemplates found = data::read_templates(r.templates, chain.sequence);
  for (const std::string& notice : found.notices) say(notice);
  if (std::ssize(found.templates) > kMostTemplates)
    say(concat("the ", kMostTemplates, " templates most like ", chain.name, " are taken of ", found.templates.size(),
               " in ", r.templates));
  chain.templates = std::move(found.templates);
}

void add_feature_options(CLI::App& app, FeaturesRequest& r) {
  const auto add_count = [&](const std::string& names, int64_t& value, const char* help) {
    return app.add_option(names, value, help)->capture_default_str();
  };
  add_count("--passes,--folding.passes", r.options.passes, "passes of the model, each with its own draws")
      ->check(CLI::PositiveNumber);
  add_count("--clusters,--folding.clusters", r.options.clusters, "rows of the clustered alignment with the query")
      ->check(CLI::PositiveNumber);
  add_count("--extra,--folding.extra", r.options.extra, "further rows; models 1, 3 and 4 of AlphaFold read 5120")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--masked,--folding.masked", r.options.masked, "share of the letters that are masked")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--seed", r.options.seed, "number from which rows and masks are drawn, with the name and the pass")
      ->capture_default_str();
}

}  // namespace

int features(const Arguments& arguments) {
  CLI::App app(
      "Writes what a folding model reads of a chain, its alignment and its templates, as safetensors under AlphaFold's "
      "names, with a leading dimension of passes. `colossal fold --input` reads such a file.",
      "colossal features");
  FeaturesRequest r;
  r.options.seed = fold::FoldOptions{}.seed;  // so that both commands draw the same
  app.add_option("--input", r.input, "FASTA file with one chain")->required();
  app.add_option("--msa", r.alignments, "alignment of the chain, .a3m or .sto, perhaps with .gz; repeatable")
      ->take_all();
  app.add_option("--templates", r.templates, "folder of known structures of related chains, .cif or .pdb");
  app.add_option("--to", r.to, "file to write, which ends in .safetensors")->required();
  add_feature_options(app, r);
  parse(app, arguments);
  if (!has_ending(r.to, ".safetensors"))
    throw UsageError(concat("colossal features: --to must end in .safetensors: got ", r.to));
  data::FoldingChain chain = chain_of_file(r.input);
  read_alignments(r, chain);
  find_templates(r, chain);
  run::write_features(r.to, data::make_features(chain, r.options));
  put_line(r.to);
  return 0;
}

}  // namespace colossal::cli
