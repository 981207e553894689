// Structures in mmCIF: gemmi splits the text into tables, and this file reads those that it needs.
#include <charconv>
#include <cmath>
#include <gemmi/cif.hpp>
#include <gemmi/numb.hpp>
#include <gemmi/resinfo.hpp>
#include <map>
#include <optional>

#include "colossal/base/error.h"
#include "colossal/protein/read_chain.h"
#include "colossal/protein/structure_reader.h"

namespace colossal::protein {
namespace {

namespace cif = gemmi::cif;

std::optional<int64_t> integer_of(const std::string& text) {
  int64_t number = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (fault != std::errc() || end != text.data() + text.size()) return {};
  return number;
}

/// Residues of each entity, and whether it is a protein.
struct Entity {
  std::vector<std::string> residues;  ///< empty names = numbers that the file leaves out
  std::string type;                   ///< that of `entity_poly`; empty = not given
};

/// Reads the tables of one data block.
class BlockReader {
 public:
  BlockReader(const std::string& path, cif::Block& block) : path_(path), block_(block) {}

  Structure structure() {
    read_sequences();
    read_atoms();
    require_chains();
    Structure structure;
    add_chains(structure, chains_);
    structure.resolution = resolution();
    structure.notices = std::move(notices_);
    return structure;
  }

 private:
  /// Residues by entity, as `entity_poly_seq` has them. Of several kinds of residue at one place it takes the first.
  void read_sequences() {
    for (cif::Table::Row row : block_.find("_entity_poly.", {"entity_id", "type"}))
      entities_[row.str(0)].type = row.str(1);
    int64_t number = 0;
    for (cif::Table::Row row : block_.find("_entity_poly_seq.", {"entity_id", "num", "mon_id"})) {
      const std::string place = concat("row ", ++number, " of entity_poly_seq");
      std::vector<std::string>& residues = entities_[row.str(0)].residues;
      const std::optional<int64_t> at = integer_of(row.at(1));
      constexpr int64_t kMostResidues = 1'000'000;
      require(at && *at >= 1 && *at <= kMostResidues, "mmcif", path_, ": the number of a residue must be from 1 to ",
              kMostResidues, ": got ", row.at(1), " in ", place);
      if (static_cast<size_t>(*at) > residues.size()) residues.resize(static_cast<size_t>(*at));
      std::string& name = residues[static_cast<size_t>(*at) - 1];
      if (name.empty()) name = row.str(2);
    }
    for (const auto& [id, entity] : entities_)
      for (size_t i = 0; i < entity.residues.size(); ++i)
        require(!entity.residues[i].empty(), "mmcif", path_, ": entity_poly_seq must have all residues of entity ", id,
                ": got none with the number ", i + 1, "; fetch the file again");
  }

  void read_atoms() {
    cif::Table atoms = block_.find("_atom_site.", {"label_atom_id", "label_comp_id", "label_asym_id", "label_seq_id",
                                                   "Cartn_x", "Cartn_y", "Cartn_z", "?label_entity_id", "?occupancy",
                                                   "?B_iso_or_equiv", "?auth_asym_id", "?pdbx_PDB_model_num"});
    require(atoms.length() > 0, "mmcif", path_,
            " must have atoms: got no row of atom_site with label ids and places; give the file of a structure");
    std::map<std::string, std::string> entity_of_chain;
    for (cif::Table::Row row : block_.find("_struct_asym.", {"id", "entity_id"}))
      entity_of_chain[row.str(0)] = row.str(1);
    std::string model;
    for (cif::Table::Row row : atoms) {
      const std::string number = row.has(kModel) ? row.str(kModel) : "";
      if (row_ == 0) model = number;
      ++row_;
      if (number != model) continue;
      const std::string label = row.str(kChain), author = row.has2(kAuthorChain) ? row.str(kAuthorChain) : label;
      read_atom(row, label, author, row.has2(kEntity) ? row.str(kEntity) : entity_of_chain[label]);
    }
  }

  void read_atom(cif::Table::Row& row, const std::string& label, const std::string& author,
                 const std::string& entity_id) {
    const auto entity = entities_.find(entity_id);
    if (entity == entities_.end() || !is_protein(label, author, entity->second)) return;
    const std::vector<std::string>& residues = entity->second.residues;
    const auto [at, is_new] = chain_at_.emplace(label, chains_.size());
    if (is_new) {
      require(!residues.empty(), "mmcif", path_, " must have the sequence of chain ", author,
              ": got no row of entity_poly_seq for entity ", entity_id, "; fetch the whole file");
      chains_.push_back({author, label, {}});
      for (const std::string& name : residues) chains_.back().residues.push_back({name, {}});
    }
    const std::optional<int64_t> place = integer_of(row.at(kResidue));
    require(place && *place >= 1 && *place <= static_cast<int64_t>(residues.size()), "mmcif", path_,
            ": label_seq_id must be from 1 to ", residues.size(), " in chain ", author,
            ", the length of its sequence: got ", row.at(kResidue), " in row ", row_, " of atom_site");
    ReadAtom atom{row.str(kResidueName), row.str(kAtom), 1, {number(row, 4), number(row, 5), number(row, 6)}, 0};
    if (row.has2(kOccupancy)) atom.occupancy = number(row, kOccupancy);
    if (row.has2(kFactor)) atom.b_factor = number(row, kFactor);
    chains_[at->second].residues[static_cast<size_t>(*place) - 1].atoms.push_back(std::move(atom));
  }

  /// Returns whether an entity is a protein. If it is another polymer, it says so once a chain.
  bool is_protein(const std::string& label, const std::string& author, const Entity& entity) {
    const auto known = is_protein_.find(label);
    if (known != is_protein_.end()) return known->second;
    const bool is = entity.type.empty() ? has_protein_residues(entity) : entity.type == "polypeptide(L)";
    if (!is)
      notices_.push_back(concat("chain ", author, " of ", path_, " is left out: its type is ",
                                entity.type.empty() ? "no protein" : entity.type));
    return is_protein_[label] = is;
  }

  static bool has_protein_residues(const Entity& entity) {
    size_t count = 0;
    for (const std::string& name : entity.residues) count += kind_of_residue(name) == ResidueKind::Protein;
    return 2 * count > entity.residues.size();
  }

  double number(cif::Table::Row& row, int column) const {
    const double number = cif::as_number(row.at(column));
    require(std::abs(number) < kLargestNumber, "mmcif", path_, ": ", kColumns[column],
            " must be a number below 1e6: got ", row.at(column), " in row ", row_, " of atom_site");
    return number;
  }

  void require_chains() const {
    if (!chains_.empty()) return;
    bool has_sequence = false;
    for (const auto& [id, entity] : entities_) has_sequence |= !entity.residues.empty();
    require(has_sequence, "mmcif", path_,
            " must have sequences: got no row of entity_poly_seq; give a file of the Protein Data Bank or of ModelCIF");
    throw Error("mmcif", concat(path_, " must have a protein chain: got none",
                                notices_.empty() ? "" : " (" + notices_[0] + ")", "; give another structure"));
  }

  double resolution() {
    for (const char* tag : {"_refine.ls_d_res_high", "_em_3d_reconstruction.resolution", "_reflns.d_resolution_high"})
      for (const std::string& text : block_.find_values(tag))
        if (const double number = cif::as_number(text); std::isfinite(number) && number > 0) return number;
    return 0;
  }

  static constexpr int kAtom = 0, kResidueName = 1, kChain = 2, kResidue = 3, kEntity = 7, kOccupancy = 8, kFactor = 9,
                       kAuthorChain = 10, kModel = 11;
  static constexpr const char* kColumns[] = {"label_atom_id", "label_comp_id",  "label_asym_id", "label_seq_id",
                                             "Cartn_x",       "Cartn_y",        "Cartn_z",       "label_entity_id",
                                             "occupancy",     "B_iso_or_equiv", "auth_asym_id",  "pdbx_PDB_model_num"};

  const std::string& path_;
  cif::Block& block_;
  std::map<std::string, Entity> entities_;
  std::map<std::string, bool> is_protein_;  // by the chain's label id
  std::map<std::string, size_t> chain_at_;
  std::vector<ReadChain> chains_;
  std::vector<std::string> notices_;
  int64_t row_ = 0;
};

}  // namespace

bool reads_structures() { return true; }

int type_of_residue(const std::string& name) {
  if (const int type = type_of_name(name); type != kUnknownType) return type;
  const gemmi::ResidueInfo info = gemmi::find_tabulated_residue(name);
  const bool is_left_handed = info.is_amino_acid() && info.kind != gemmi::ResidueInfo::AAD;
  return is_left_handed ? type_of_letter(info.one_letter_code) : kUnknownType;
}

ResidueKind kind_of_residue(const std::string& name) {
  const gemmi::ResidueInfo info = gemmi::find_tabulated_residue(name);
  if (info.is_amino_acid()) return ResidueKind::Protein;
  return info.is_dna() ? ResidueKind::Dna : info.is_rna() ? ResidueKind::Rna : ResidueKind::Other;
}

Structure read_mmcif(const TextFile& file) {
  try {
    cif::Document document = cif::read_memory(file.bytes.data(), file.bytes.size(), file.path.c_str());
    for (cif::Block& block : document.blocks)
      if (block.has_tag("_atom_site.Cartn_x")) return BlockReader(file.path, block).structure();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // gemmi's, whose texts begin with path and line
    throw Error("mmcif", concat("a file of mmCIF must be readable: got ", error.what(), "; fetch it again"));
  }
  throw Error("mmcif", file.path + " must have atoms: got no row of atom_site; give the file of a structure");
}

}  // namespace colossal::protein
