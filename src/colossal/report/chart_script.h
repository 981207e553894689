// The script that draws the charts of a report from chart_data().
#pragma once

namespace colossal::report {

/// Draws all charts into the element with the id "charts", and follows the controls with the ids "x", "log" and
/// "smooth" and the check boxes named "run". The view is kept in the page's address: #x=time&log=1&smooth=0.9&hide=2.
const char* chart_script();

}  // namespace colossal::report
