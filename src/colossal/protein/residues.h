// Names and letters of residues and atoms.
//
//   const int type = protein::type_of_letter('K');                  // 11
//   const std::string name = protein::name_of_type(type);           // "LYS"
//   const int atom = protein::atom37_of_name("NZ");                 // 35
//   const bool has = protein::residue_tables().atom37_exists[type][atom];
//
// Types follow AlphaFold: A R N D C Q E G H I L K M F P S T W Y V, then X (unknown). Alignments add a gap and, in
// models, a mask.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "colossal/protein/geometry.h"

namespace colossal::protein {

inline constexpr int kTypes = 20;        ///< residue types with atoms
inline constexpr int kUnknownType = 20;  ///< X, which has no atoms
inline constexpr int kGapType = 21;      ///< a gap of an alignment
inline constexpr int kMaskType = 22;     ///< a masked letter of an alignment
inline constexpr int kTableTypes = 21;   ///< rows of tables: the types and X
inline constexpr int kAtom37 = 37;       ///< slots of atoms that have one meaning in all residues
inline constexpr int kAtom14 = 14;       ///< slots of atoms of one residue, without empty ones between them
inline constexpr int kRigidGroups = 8;   ///< backbone, pre-omega, phi, psi, chi1 to chi4
inline constexpr int kAtomN = 0, kAtomCa = 1, kAtomC = 2, kAtomCb = 3, kAtomO = 4;  ///< slots of atom37

/// Returns the type of a letter in upper or lower case: 0 to 19, or kUnknownType for all other characters.
int type_of_letter(char letter);

/// Returns the type of a letter of an alignment, in upper case: 0 to 19, kUnknownType or, for `-`, kGapType. B is D, Z
/// is E and U is C there; J, O, X and other characters are unknown.
int alignment_type_of_letter(char letter);

/// Returns the letter of a type from 0 to kGapType: "ARNDCQEGHILKMFPSTWYVX-".
char letter_of_type(int type);

/// Returns the three letters of a type: "ALA" to "VAL", "UNK" for kUnknownType.
const char* name_of_type(int type);

/// Returns the type of three letters in upper case, kUnknownType if they are none of the 20.
int type_of_name(std::string_view name);

/// Returns the name of a slot of atom37, such as "CA".
const char* name_of_atom37(int atom);

/// Returns the slot of atom37 of that name, -1 if there is none.
int atom37_of_name(std::string_view name);

/// Returns the element of a slot of atom37: 'C', 'N', 'O' or 'S'.
char element_of_atom37(int atom);

template <class T, size_t... Sizes>
struct TableOf;
template <class T>
struct TableOf<T> {
  using Type = T;
};
template <class T, size_t First, size_t... Rest>
struct TableOf<T, First, Rest...> {
  using Type = std::array<typename TableOf<T, Rest...>::Type, First>;
};
/// Nested arrays whose values are contiguous, in row-major order.
template <class T, size_t... Sizes>
using Table = typename TableOf<T, Sizes...>::Type;

/// Tables of all types, which models, features and losses use. The first dimension is the type. Positions are in
/// Angstrom, in the frame of the atom's rigid group; they are the values of Jumper et al. 2021 (supplement, table 2).
/// The row of X is empty: no atoms, no angles, and frames of zeros.
struct ResidueTables {
  Table<bool, kTableTypes, kAtom37> atom37_exists{};
  Table<bool, kTableTypes, kAtom14> atom14_exists{};
  Table<int64_t, kTableTypes, kAtom14> atom14_to_atom37{};  ///< slot of atom37; 0 = empty slot
  Table<int64_t, kTableTypes, kAtom37> atom37_to_atom14{};  ///< slot of atom14; 0 = the residue lacks that atom
  Table<int64_t, kTableTypes, kAtom14> atom14_group{};      ///< rigid group that moves the atom
  Table<Point, kTableTypes, kAtom14> atom14_position{};     ///< in the frame of the group
  /// The frame of each group with all angles 0, in the frame of the group before: of chi2 to chi4 the last chi, of the
  /// others the backbone. Frames of chi groups that a residue lacks are zeros.
  Table<Frame, kTableTypes, kRigidGroups> default_frame{};
  Table<bool, kTableTypes, 4> chi_exists{};
  /// Slots of atom37 of the four atoms that define each chi angle; zeros if there is none.
  Table<int64_t, kTableTypes, 4, 4> chi_atoms{};
  /// True for chis that a turn by pi does not change: chi2 of D, F and Y, and chi3 of E.
  Table<bool, kTableTypes, 4> chi_is_symmetric{};
  /// Slot of atom14 whose name each atom has in the other naming of a symmetric residue; the slot itself elsewhere.
  Table<int64_t, kTableTypes, kAtom14> atom14_renamed{};
  Table<bool, kTableTypes, kAtom14> atom14_is_ambiguous{};  ///< true if the other naming differs
};

/// Returns the tables, which live as long as the program. Thread safety: any thread may call it.
const ResidueTables& residue_tables();

}  // namespace colossal::protein
