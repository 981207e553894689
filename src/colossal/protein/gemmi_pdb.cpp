// Structures in the format of the Protein Data Bank, which gemmi reads.
#include <charconv>
#include <cmath>
#include <gemmi/pdb.hpp>
#include <gemmi/polyheur.hpp>
#include <gemmi/seqalign.hpp>
#include <map>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/number.h"
#include "colossal/protein/read_chain.h"

namespace colossal::protein {
namespace {

constexpr size_t kColumns = 80;

bool has_number(std::string_view text) {
  text = trimmed(text);
  if (text.starts_with('+')) text.remove_prefix(1);
  double number = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  return fault == std::errc() && end == text.data() + text.size() && std::abs(number) < kLargestNumber;
}

/// Checks the numbers of an atom, because gemmi takes what is no number for 0.
void require_atom(const std::string& line, const std::string& place) {
  const std::string_view all = line, number = trimmed(all.substr(22, 4));
  const bool has_letters = !number.empty() && number.front() >= 'A';  // numbers above 9,999 in base 36
  require(has_letters || has_number(number), "pdb", place, ": columns 23 to 26 must be the number of a residue: got `",
          all.substr(22, 4), "`");
  for (size_t column : {30, 38, 46})
    require(has_number(all.substr(column, 8)), "pdb", place, ": columns ", column + 1, " to ", column + 8,
            " must be a number below 1e6: got `", all.substr(column, 8), "`");
}

/// Returns the lines that this reader needs, each at its number, in full length, because gemmi reads the columns of a
/// short line from the line before. The text ends after the first model.
std::string prepared(const TextFile& file) {
  static const std::set<std::string> kRecords{"ATOM", "HETATM", "TER", "MODEL", "SEQRES"};
  std::string text;
  text.reserve(file.bytes.size() + file.bytes.size() / 8);
  int64_t atoms = 0;
  TextLines lines(file);
  while (lines.next()) {
    std::string line(lines.line().substr(0, kColumns));
    line.resize(kColumns, ' ');
    for (char& c : line)
      if (c < ' ' || c > '~') c = c == '\t' ? ' ' : '?';
    const std::string record(trimmed(std::string_view(line).substr(0, 6)));
    if (record == "ENDMDL" || record == "END") break;
    if (record == "ATOM" || record == "HETATM") require_atom(line, lines.place()), ++atoms;
    const bool is_resolution = line.starts_with("REMARK   2") || line.starts_with("REMARK   3");
    if (kRecords.contains(record) || is_resolution) text += line;
    text += '\n';
  }
  require(atoms > 0, "pdb", file.path, " must have atoms: got no ATOM record; give the file of a structure");
  return text;
}

/// Returns the residues of a polymer: those before TER, or without it those that are residues of a protein or of DNA.
/// Alternative residues with one number follow one another.
std::vector<const gemmi::Residue*> polymer_of(const gemmi::Model& model, const std::string& chain) {
  std::vector<const gemmi::Residue*> residues;
  for (const gemmi::Chain& part : model.chains) {
    if (part.name != chain) continue;
    for (const gemmi::Residue& residue : part.residues) {
      bool is_part = residue.entity_type == gemmi::EntityType::Polymer;
      if (residue.entity_type == gemmi::EntityType::Unknown)
        for (gemmi::PolymerType type : {gemmi::PolymerType::PeptideL, gemmi::PolymerType::Dna, gemmi::PolymerType::Rna})
          is_part |= is_polymer_residue(residue, type);
      if (is_part) residues.push_back(&residue);
    }
  }
  return residues;
}

/// What most residues of a polymer are.
ResidueKind kind_of(const std::vector<const gemmi::Residue*>& polymer) {
  size_t protein = 0, dna = 0, rna = 0;
  for (const gemmi::Residue* residue : polymer) {
    ResidueKind kind = kind_of_residue(residue->name);
    if (kind == ResidueKind::Other && residue->get_ca() != nullptr) kind = ResidueKind::Protein;
    protein += kind == ResidueKind::Protein;
    dna += kind == ResidueKind::Dna;
    rna += kind == ResidueKind::Rna;
  }
  if (protein > dna + rna) return ResidueKind::Protein;
  if (dna + rna == 0) return ResidueKind::Other;
  return dna >= rna ? ResidueKind::Dna : ResidueKind::Rna;
}

using Groups = std::vector<std::vector<const gemmi::Residue*>>;

/// Returns residues of one number together.
Groups groups_of(const std::vector<const gemmi::Residue*>& polymer) {
  Groups groups;
  for (const gemmi::Residue* residue : polymer) {
    if (groups.empty() || groups.back()[0]->seqid != residue->seqid) groups.emplace_back();
    groups.back().push_back(residue);
  }
  return groups;
}

/// Returns the place of each group in the sequence. Gaps are free between residues that no bond joins.
std::vector<size_t> places_of(const Groups& groups, const std::vector<std::string>& sequence, const std::string& chain,
                              const std::string& path) {
  std::vector<uint8_t> wanted, given;
  std::map<std::string, uint8_t> codes;
  const auto code = [&](const std::string& name) { return codes.emplace(name, codes.size()).first->second; };
  for (const std::string& name : sequence) wanted.push_back(code(name));
  std::vector<bool> is_free{true};
  for (size_t i = 0; i < groups.size(); ++i) {
    given.push_back(code(groups[i][0]->name));
    if (i > 0) is_free.push_back(!are_connected3(*groups[i - 1][0], *groups[i][0], gemmi::PolymerType::PeptideL));
  }
  constexpr size_t kMostCells = size_t{1} << 30, kMostNames = 255;
  require(codes.size() <= kMostNames && wanted.size() * given.size() <= kMostCells, "pdb", path, ": chain ", chain,
          " must have at most 255 kinds of residues, and 2^30 pairs of residues with and without atoms: got ",
          codes.size(), " kinds, ", wanted.size(), " x ", given.size(), " pairs; give it as mmCIF");
  const gemmi::AlignmentResult found =
      gemmi::align_sequences(wanted, given, is_free, static_cast<uint8_t>(codes.size()), {});
  std::vector<size_t> places;
  size_t place = 0;
  for (const gemmi::AlignmentResult::Item& item : found.cigar) {
    require(item.op() != 'D', "pdb", path, ": residue ", groups[std::min(places.size(), groups.size() - 1)][0]->str(),
            " of chain ", chain, " must be one of SEQRES: got no place for it");
    for (uint32_t i = 0; i < item.len(); ++i, ++place)
      if (item.op() == 'M') places.push_back(place);
  }
  return places;
}

std::vector<ReadAtom> atoms_of(const std::vector<const gemmi::Residue*>& group) {
  std::vector<ReadAtom> atoms;
  // gemmi keeps these as floats, which are the decimals of the file.
  const auto decimal = [](float number) { return std::isfinite(number) ? shortest_double(number) : 0; };
  for (const gemmi::Residue* residue : group)
    for (const gemmi::Atom& atom : residue->atoms)
      atoms.push_back(
          {residue->name, atom.name, decimal(atom.occ), {atom.pos.x, atom.pos.y, atom.pos.z}, decimal(atom.b_iso)});
  return atoms;
}

/// Returns a chain with all residues of `sequence`, or of the polymer if it is empty.
ReadChain chain_of(const std::string& id, const Groups& groups, std::vector<std::string> sequence,
                   const std::string& path) {
  std::vector<size_t> places;
  if (sequence.empty()) {
    for (const auto& group : groups) places.push_back(places.size()), sequence.push_back(group[0]->name);
  } else {
    places = places_of(groups, sequence, id, path);
  }
  ReadChain chain{id, id, {}};
  for (const std::string& name : sequence) chain.residues.push_back({name, {}});
  for (size_t i = 0; i < places.size(); ++i) chain.residues[places[i]].atoms = atoms_of(groups[i]);
  return chain;
}

}  // namespace

Structure read_pdb(const TextFile& file) {
  gemmi::Structure source;
  try {
    const std::string text = prepared(file);
    source = gemmi::read_pdb_from_memory(text.data(), text.size(), file.path);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error("pdb", concat(file.path, " must be a file of the Protein Data Bank: got ", error.what()));
  }
  Structure structure;
  structure.resolution = std::isfinite(source.resolution) && source.resolution > 0 ? source.resolution : 0;
  std::vector<ReadChain> chains;
  std::set<std::string> seen;
  for (const gemmi::Chain& part : source.models.at(0).chains) {
    if (!seen.insert(part.name).second) continue;
    const auto polymer = polymer_of(source.models[0], part.name);
    const ResidueKind kind = kind_of(polymer);
    const std::string id = part.name.empty() ? "A" : part.name;  // old files of one chain leave the column empty
    if (kind == ResidueKind::Protein) {
      const gemmi::Entity* entity = source.get_entity(part.name);
      chains.push_back(
          chain_of(id, groups_of(polymer), entity ? entity->full_sequence : std::vector<std::string>{}, file.path));
    } else if (kind != ResidueKind::Other) {
      structure.notices.push_back(
          concat("chain ", id, " of ", file.path, " is left out: it is ", kind == ResidueKind::Dna ? "DNA" : "RNA"));
    }
  }
  require(!chains.empty(), "pdb", file.path, " must have a protein chain: got none",
          structure.notices.empty() ? "" : " (" + structure.notices[0] + ")", "; give another structure");
  add_chains(structure, chains);
  return structure;
}

}  // namespace colossal::protein
