// What a dashboard of ours may look like: Grafana's types, panel by panel, with enumerations as their values in JSON.
import type { AnnotationQuery, Dashboard, DataQuery, FieldConfig, MatcherConfig, Panel, RowPanel } from '@grafana/schema';
import type * as stat from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type * as statetimeline from '@grafana/schema/dist/esm/raw/composable/statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen';
import type * as table from '@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import type * as timeseries from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

type Json<T> = T extends string ? `${T}` : T extends object ? { [Key in keyof T]: Json<T[Key]> } : T;

// The queries of Prometheus have types in a package of their own, which brings a user interface with it.
interface PrometheusQuery extends DataQuery {
  expr: string;
  format?: 'time_series' | 'table' | 'heatmap';
  instant?: boolean;
  interval?: string;
  legendFormat?: string;
  range?: boolean;
}

interface PrometheusAnnotation extends AnnotationQuery<PrometheusQuery> {
  expr: string; // read by Grafana 11, which does not know `target`
  step: string;
  target: PrometheusQuery;
  titleFormat: string;
}

// What an override sets is named by its path: what the panel itself knows is below `custom`.
type Properties<Known, Path extends string> = { [Key in keyof Known & string]-?: { id: `${Path}${Key}`; value: Known[Key] } };
type Property<Known, Path extends string> = Properties<Known, Path>[keyof Known & string];

interface Fields<Custom> {
  defaults: Omit<FieldConfig, 'custom'> & { custom?: Custom };
  overrides: Array<{
    matcher: MatcherConfig;
    properties: Array<Property<Omit<FieldConfig, 'custom'>, ''> | Property<Custom, 'custom.'>>;
  }>;
}

interface Drawn<Type extends string, Options, Custom> extends Omit<Panel, 'type' | 'options' | 'fieldConfig' | 'targets'> {
  id: number;
  type: Type;
  title: string;
  description: string;
  options: Options;
  fieldConfig: Fields<Custom>;
  targets: PrometheusQuery[];
}

type AnyPanel =
  | RowPanel
  | Drawn<'stat', stat.Options, never>
  | Drawn<'state-timeline', statetimeline.Options, statetimeline.FieldConfig>
  | Drawn<'table', table.Options, table.FieldConfig>
  | Drawn<'timeseries', timeseries.Options, timeseries.FieldConfig>;

interface Board extends Omit<Dashboard, 'panels' | 'annotations'> {
  uid: string;
  title: string;
  panels: AnyPanel[];
  annotations: { list: PrometheusAnnotation[] };
}

export type DashboardJson = Json<Board>;
