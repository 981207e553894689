#include "colossal/fold/alignment_input.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <numeric>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/data/folding/features.h"
#include "colossal/data/folding/template_folder.h"
#include "colossal/data/visible_files.h"
#include "colossal/models/registry.h"
#include "colossal/protein/alignment.h"
#include "colossal/protein/fasta.h"
#include "colossal/protein/residues.h"
#include "colossal/run/feature_file.h"

namespace colossal::fold {
namespace {

/// Returns the rows of all files, after a check of their queries.
protein::Alignment read_alignments(const Sequence& sequence, const AlignmentFiles& files) {
  if (files.alignments.empty()) return protein::single_row(sequence.chains[0], sequence.name);
  std::vector<protein::Alignment> parts;
  for (const std::string& path : files.alignments) {
    parts.push_back(protein::read_alignment(path));
    protein::require_query(parts.back(), sequence.chains[0], files.place.empty() ? sequence.name : files.place);
  }
  return protein::join_alignments(parts);
}

bool begins_with(const std::string& file, const std::string& name) {
  if (!file.starts_with(name) || file.size() == name.size()) return file == name;
  const char next = file[name.size()];
  return !((next >= 'a' && next <= 'z') || (next >= 'A' && next <= 'Z') || (next >= '0' && next <= '9'));
}

std::vector<int64_t> all_of(int64_t residues) {
  std::vector<int64_t> kept(static_cast<size_t>(residues));
  std::iota(kept.begin(), kept.end(), 0);
  return kept;
}

}  // namespace

FoldInput chain_input(const std::function<data::FoldingChain()>& read, const models::ModelShape& shape,
                      const AlignmentRows& rows) {
  const data::FoldingChain chain = read();
  FoldInput input{.sequence = {chain.name, {chain.sequence}}, .notices = chain.alignment.notices};
  check_sequence(input.sequence, shape, chain.place.empty() ? "" : chain.place + ": ");
  const models::FoldingSizes model = models::folding_of(shape);
  require(model.reads_alignments, "fold", "alignments must be for a model that reads them: got ",
          shape.architecture->name, " for ", chain.name);
  const auto residues = static_cast<int64_t>(chain.sequence.size());
  const int64_t found = std::max<int64_t>(1, std::ssize(chain.alignment.rows));
  input.sizes = {.residues = residues, .clusters = std::min(rows.clusters, found)};
  input.sizes.extra = std::max<int64_t>(1, std::min(rows.extra, found - input.sizes.clusters));
  input.kept = all_of(residues);
  if (std::ssize(chain.templates) > model.templates && model.templates > 0)
    input.notices.push_back(
        concat("the ", model.templates, " templates most like ", chain.name, " are read of ", chain.templates.size()));
  input.fields = [=](int64_t passes, uint64_t seed) {
    return data::make_features(read(), {.clusters = rows.clusters,
                                        .extra = rows.extra,
                                        .passes = passes,
                                        .masked = rows.masked,
                                        .templates = model.templates,
                                        .seed = seed});
  };
  return input;
}

FoldInput alignment_input(const Sequence& sequence, const AlignmentFiles& files, const models::ModelShape& shape,
                          const AlignmentRows& rows) {
  check_sequence(sequence, shape, files.place.empty() ? "" : files.place + ": ");
  require(sequence.chains.size() == 1, "fold", "alignments must be for one chain: got ", sequence.chains.size(),
          " chains of ", sequence.name);
  data::FoundTemplates known;
  if (!files.templates.empty()) known = data::read_templates(files.templates, sequence.chains[0]);
  FoldInput input = chain_input(
      [sequence, files, templates = std::move(known.templates)] {
        return data::FoldingChain{.name = sequence.name,
                                  .sequence = sequence.chains[0],
                                  .place = files.place,
                                  .alignment = read_alignments(sequence, files),
                                  .templates = templates};
      },
      shape, rows);
  input.notices.insert(input.notices.end(), known.notices.begin(), known.notices.end());
  return input;
}

Sequence sequence_of_features(const std::string& path) {
  const at::Tensor types = run::read_features(path).at("aatype").flatten().contiguous();
  std::string letters;
  for (int64_t i = 0; i < types.numel(); ++i)
    letters += protein::letter_of_type(static_cast<int>(types.const_data_ptr<int64_t>()[i]));
  return {protein::file_name_of(std::filesystem::path(path).stem().string()), {letters}};
}

FoldInput feature_input(const std::string& path, const models::ModelShape& shape) {
  const models::FoldingSizes model = models::folding_of(shape);
  require(model.reads_alignments, "fold", "a file of features must be for a model that reads alignments: got ", path,
          " and ", shape.architecture->name, "; give it the sequence with --sequence or a FASTA file");
  FoldInput input{.sequence = sequence_of_features(path)};
  check_sequence(input.sequence, shape, path + ": ");
  tensor::Batch row = run::read_features(path);
  const auto residues = static_cast<int64_t>(input.sequence.chains[0].size());
  input.sizes = {.residues = residues, .clusters = row.at("msa_feat").size(2), .extra = row.at("extra_msa").size(2)};
  input.kept = all_of(residues);
  if (model.templates > 0 && !row.find("template_aatype").defined())
    data::add_templates(row, {}, {.first = 0, .size = residues});
  input.fields = [row = std::move(row)](int64_t, uint64_t) { return row; };
  return input;
}

std::vector<std::string> alignments_of(const std::string& folder, const std::string& name,
                                       const std::vector<std::string>& names) {
  std::vector<std::string> own;
  for (const std::string& path : data::visible_files(folder, protein::is_alignment_name)) {
    const std::string file = std::filesystem::path(path).filename().string();
    std::string longest;
    for (const std::string& other : names)
      if (begins_with(file, other) && other.size() > longest.size()) longest = other;
    if (longest == name) own.push_back(path);
  }
  return own;
}

}  // namespace colossal::fold
