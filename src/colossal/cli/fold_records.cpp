#include "colossal/cli/fold_records.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/file_name.h"
#include "colossal/fold/alignment_input.h"
#include "colossal/fold/folded_files.h"
#include "colossal/protein/fasta.h"

namespace colossal::cli {
namespace {

constexpr size_t kNamedResidues = 10;  // in a notice

bool names_structure(const std::string& path) { return has_ending(path, ".cif") || has_ending(path, ".pdb"); }

/// Returns a path without slashes at its end, so that paths of files in it have one.
std::string without_slash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

/// Returns true if the PDB format may be too small, of which a text has to be looked at.
bool is_large(const fold::Sequence& sequence) {
  constexpr size_t kSmall = 7000;  // residues with at most 14 atoms
  size_t residues = 0;
  for (const std::string& chain : sequence.chains) residues += chain.size();
  return residues > kSmall || sequence.chains.size() > 1;
}

}  // namespace

std::vector<FoldRecord> read_fold_records(const std::string& sequence, const std::string& input,
                                          const std::string& to) {
  if (input.empty()) {
    const std::string stem = names_structure(to) ? std::filesystem::path(to).stem().string() : "sequence";
    return {{{protein::file_name_of(stem), protein::chains_of(sequence, "--sequence")}, "--sequence: "}};
  }
  if (has_ending(input, ".safetensors")) return {{fold::sequence_of_features(input), input + ": "}};
  std::vector<FoldRecord> records;
  for (protein::FastaRecord& record : protein::read_fasta(input))
    records.push_back({{record.name, std::move(record.chains)}, concat(input, ":", record.line, ": ")});
  return records;
}

std::vector<std::string> alignments_of_record(const std::vector<std::string>& given, const FoldRecord& record,
                                              const std::vector<FoldRecord>& all) {
  std::vector<std::string> names, files;
  for (const FoldRecord& other : all) names.push_back(other.sequence.name);
  for (const std::string& path : given) {
    if (!std::filesystem::is_directory(path)) {
      require(all.size() == 1, "fold", "--msa must be a folder for ", all.size(), " records: got ", path,
              "; name a folder whose files begin with the names of records");
      files.push_back(path);
      continue;
    }
    for (std::string& own : fold::alignments_of(path, record.sequence.name, names)) files.push_back(std::move(own));
  }
  require(given.empty() || !files.empty(), "fold", record.place,
          "--msa must have a file for each record: got none that begins with ", record.sequence.name,
          "; add one, or fold the record alone without --msa");
  return files;
}

std::string notice_of_unknown(const fold::Sequence& sequence) {
  size_t count = 0;
  std::string named;
  for (size_t chain = 0; chain < sequence.chains.size(); ++chain)
    for (size_t i = 0; i < sequence.chains[chain].size(); ++i) {
      if (protein::type_of_letter(sequence.chains[chain][i]) != protein::kUnknownType) continue;
      if (++count > kNamedResidues) continue;
      named += concat(named.empty() ? "" : ", ", protein::chain_id(static_cast<int64_t>(chain)), i + 1);
    }
  if (count == 0) return "";
  return concat(sequence.name, ": ", count, count == 1 ? " residue is" : " residues are",
                " none of the 20 types and get", count == 1 ? "s" : "", " no atoms (X): ", named,
                count > kNamedResidues ? ", ..." : "");
}

FoldFiles::FoldFiles(std::string to, std::string errors, std::string tensors, size_t models)
    : to_(without_slash(std::move(to))),
      errors_(without_slash(std::move(errors))),
      tensors_(without_slash(std::move(tensors))),
      models_(models),
      is_folder_(!names_structure(to_)) {
  const bool has_ending_of_file = std::filesystem::path(to_).has_extension() && !std::filesystem::is_directory(to_);
  require(!is_folder_ || !has_ending_of_file, "fold", "--to must end in .cif or .pdb, or be a folder: got ", to_,
          "; rename it, or make the folder first");
  require(is_folder_ || models_ == 1, "fold", "--to must be a folder for several models: got ", to_,
          "; leave out its ending");
}

void FoldFiles::check(const std::vector<FoldRecord>& records) const {
  require(is_folder_ || records.size() == 1, "fold", "--to must be a folder for ", records.size(), " records: got ",
          to_, "; leave out its ending");
  if (!has_ending(to_, ".pdb")) return;
  for (const FoldRecord& record : records)
    if (is_large(record.sequence)) protein::require_pdb_sizes(fold::unplaced_structure(record.sequence));
}

void FoldFiles::make_folders() const {
  for (const std::string& place : {to_, errors_, tensors_}) {
    const std::string folder = is_folder_ ? place : std::filesystem::path(place).parent_path().string();
    if (!folder.empty()) create_folder(folder);
  }
}

std::string FoldFiles::path_of(const std::string& place, const std::string& name, size_t rank,
                               const char* ending) const {
  if (!is_folder_) return place;
  return concat(place, "/", name, models_ > 1 ? concat("_rank", rank + 1) : "", ending);
}

bool FoldFiles::are_there(const fold::Sequence& sequence) const {
  const auto is_there = [&](const std::string& place, size_t rank, const char* ending) {
    return place.empty() || std::filesystem::exists(path_of(place, sequence.name, rank, ending));
  };
  for (size_t rank = 0; rank < models_; ++rank)
    if (!is_there(to_, rank, ".cif") || !is_there(errors_, rank, ".json") || !is_there(tensors_, rank, ".safetensors"))
      return false;
  return true;
}

std::string FoldFiles::write(const fold::Folded& folded, size_t rank) const {
  if (!errors_.empty()) write_file(path_of(errors_, folded.name, rank, ".json"), fold::errors_text(folded));
  if (!tensors_.empty()) fold::write_tensors(folded, path_of(tensors_, folded.name, rank, ".safetensors"));
  const std::string path = path_of(to_, folded.name, rank, ".cif");
  fold::write(folded, path);
  return path;
}

std::vector<size_t> ranked(const std::vector<fold::Folded>& results) {
  const bool have_ptm = std::all_of(results.begin(), results.end(), [](const auto& one) { return bool(one.ptm); });
  const auto score = [&](size_t i) { return have_ptm ? *results[i].ptm : results[i].plddt; };
  std::vector<size_t> order(results.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return score(a) > score(b); });
  return order;
}

}  // namespace colossal::cli
