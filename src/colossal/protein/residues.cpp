#include "colossal/protein/residues.h"

#include <string>

#include "colossal/protein/residue_rows.h"

namespace colossal::protein {
namespace {

constexpr std::string_view kLetters = "ARNDCQEGHILKMFPSTWYVX-";
constexpr std::array<const char*, kTableTypes> kNames{"ALA", "ARG", "ASN", "ASP", "CYS", "GLN", "GLU",
                                                      "GLY", "HIS", "ILE", "LEU", "LYS", "MET", "PHE",
                                                      "PRO", "SER", "THR", "TRP", "TYR", "VAL", "UNK"};
constexpr std::array<const char*, kAtom37> kAtomNames{
    "N",   "CA",  "C",   "CB",  "O",   "CG", "CG1", "CG2", "OG",  "OG1", "SG", "CD",  "CD1",
    "CD2", "ND1", "ND2", "OD1", "OD2", "SD", "CE",  "CE1", "CE2", "CE3", "NE", "NE1", "NE2",
    "OE1", "OE2", "CH2", "NH1", "NH2", "OH", "CZ",  "CZ2", "CZ3", "NZ",  "OXT"};

/// The atoms along the side chain: each four neighbours define a chi angle.
struct ChiPath {
  char letter;
  std::array<const char*, 7> atoms;  // nullptr after the last
};
constexpr ChiPath kChiPaths[] = {{'R', {"N", "CA", "CB", "CG", "CD", "NE", "CZ"}},
                                 {'N', {"N", "CA", "CB", "CG", "OD1"}},
                                 {'D', {"N", "CA", "CB", "CG", "OD1"}},
                                 {'C', {"N", "CA", "CB", "SG"}},
                                 {'Q', {"N", "CA", "CB", "CG", "CD", "OE1"}},
                                 {'E', {"N", "CA", "CB", "CG", "CD", "OE1"}},
                                 {'H', {"N", "CA", "CB", "CG", "ND1"}},
                                 {'I', {"N", "CA", "CB", "CG1", "CD1"}},
                                 {'L', {"N", "CA", "CB", "CG", "CD1"}},
                                 {'K', {"N", "CA", "CB", "CG", "CD", "CE", "NZ"}},
                                 {'M', {"N", "CA", "CB", "CG", "SD", "CE"}},
                                 {'F', {"N", "CA", "CB", "CG", "CD1"}},
                                 {'P', {"N", "CA", "CB", "CG", "CD"}},
                                 {'S', {"N", "CA", "CB", "OG"}},
                                 {'T', {"N", "CA", "CB", "OG1"}},
                                 {'W', {"N", "CA", "CB", "CG", "CD1"}},
                                 {'Y', {"N", "CA", "CB", "CG", "CD1"}},
                                 {'V', {"N", "CA", "CB", "CG1"}}};

/// Pairs of atoms whose names a symmetric residue may exchange. Its last chi angle is then turned by pi.
struct NamePair {
  char letter;
  const char *first, *second;
};
constexpr NamePair kNamePairs[] = {{'D', "OD1", "OD2"}, {'E', "OE1", "OE2"}, {'F', "CD1", "CD2"},
                                   {'F', "CE1", "CE2"}, {'Y', "CD1", "CD2"}, {'Y', "CE1", "CE2"}};

void fill_atoms(ResidueTables& tables) {
  std::array<size_t, kTableTypes> slots{};
  for (const ResidueAtomRow& row : kResidueAtomRows) {
    const auto type = static_cast<size_t>(type_of_letter(row.letter));
    const auto atom = static_cast<size_t>(atom37_of_name(row.atom));
    const size_t slot = slots[type]++;
    tables.atom37_exists[type][atom] = tables.atom14_exists[type][slot] = true;
    tables.atom14_to_atom37[type][slot] = static_cast<int64_t>(atom);
    tables.atom37_to_atom14[type][atom] = static_cast<int64_t>(slot);
    tables.atom14_group[type][slot] = row.group;
    tables.atom14_position[type][slot] = row.position;
  }
  for (auto& renamed : tables.atom14_renamed)
    for (size_t slot = 0; slot < kAtom14; ++slot) renamed[slot] = static_cast<int64_t>(slot);
  for (const NamePair& pair : kNamePairs) {
    const auto type = static_cast<size_t>(type_of_letter(pair.letter));
    const auto slot_of = [&](const char* name) {
      return static_cast<size_t>(tables.atom37_to_atom14[type][static_cast<size_t>(atom37_of_name(name))]);
    };
    const size_t first = slot_of(pair.first), second = slot_of(pair.second);
    tables.atom14_renamed[type][first] = static_cast<int64_t>(second);
    tables.atom14_renamed[type][second] = static_cast<int64_t>(first);
    tables.atom14_is_ambiguous[type][first] = tables.atom14_is_ambiguous[type][second] = true;
  }
}

void fill_chis(ResidueTables& tables) {
  for (const ChiPath& path : kChiPaths) {
    const auto type = static_cast<size_t>(type_of_letter(path.letter));
    size_t chis = 0;
    for (; chis + 3 < path.atoms.size() && path.atoms[chis + 3] != nullptr; ++chis) {
      tables.chi_exists[type][chis] = true;
      for (size_t i = 0; i < 4; ++i) tables.chi_atoms[type][chis][i] = atom37_of_name(path.atoms[chis + i]);
    }
    for (const NamePair& pair : kNamePairs)
      if (pair.letter == path.letter) tables.chi_is_symmetric[type][chis - 1] = true;
  }
}

void fill_frames(ResidueTables& tables) {
  for (size_t type = 0; type < kTypes; ++type) {
    const auto at = [&](int64_t atom) {
      const int64_t slot = tables.atom37_to_atom14[type][static_cast<size_t>(atom)];
      return tables.atom14_position[type][static_cast<size_t>(slot)];
    };
    auto& frames = tables.default_frame[type];
    const Point n = at(kAtomN), ca = at(kAtomCa), c = at(kAtomC);
    frames[0] = frames[1] = Frame::identity();
    frames[2] = frame_of_axes(n - ca, {1, 0, 0}, n);
    frames[3] = frame_of_axes(c - ca, ca - n, c);
    const auto& chis = tables.chi_atoms[type];
    if (tables.chi_exists[type][0])
      frames[4] = frame_of_axes(at(chis[0][2]) - at(chis[0][1]), at(chis[0][0]) - at(chis[0][1]), at(chis[0][2]));
    // The axis of a further chi begins at the origin of the frame before.
    for (size_t chi = 1; chi < 4; ++chi)
      if (tables.chi_exists[type][chi]) frames[4 + chi] = frame_of_axes(at(chis[chi][2]), {-1, 0, 0}, at(chis[chi][2]));
  }
}

}  // namespace

int type_of_letter(char letter) {
  const char upper = letter >= 'a' && letter <= 'z' ? static_cast<char>(letter - 'a' + 'A') : letter;
  const size_t type = kLetters.substr(0, kTypes).find(upper);
  return type == std::string_view::npos ? kUnknownType : static_cast<int>(type);
}

int alignment_type_of_letter(char letter) {
  switch (letter) {
    case '-':
      return kGapType;
    case 'B':
      return type_of_letter('D');
    case 'Z':
      return type_of_letter('E');
    case 'U':
      return type_of_letter('C');
    default:
      return letter >= 'A' && letter <= 'Z' ? type_of_letter(letter) : kUnknownType;
  }
}

char letter_of_type(int type) { return kLetters.at(static_cast<size_t>(type)); }

const char* name_of_type(int type) { return kNames.at(static_cast<size_t>(type)); }

int type_of_name(std::string_view name) {
  for (int type = 0; type < kTypes; ++type)
    if (name == kNames[static_cast<size_t>(type)]) return type;
  return kUnknownType;
}

const char* name_of_atom37(int atom) { return kAtomNames.at(static_cast<size_t>(atom)); }

int atom37_of_name(std::string_view name) {
  for (int atom = 0; atom < kAtom37; ++atom)
    if (name == kAtomNames[static_cast<size_t>(atom)]) return atom;
  return -1;
}

char element_of_atom37(int atom) { return name_of_atom37(atom)[0]; }

const ResidueTables& residue_tables() {
  static const ResidueTables tables = [] {
    ResidueTables filled;
    fill_atoms(filled);
    fill_chis(filled);
    fill_frames(filled);
    return filled;
  }();
  return tables;
}

}  // namespace colossal::protein
